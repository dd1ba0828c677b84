/* A stand-in for libcuda.so.1, where there is no GPU: one device of 132 SMs, a client of fake_control.py.
   FAKE_CUDA=none: no device; FAKE_CUDA=flat: the percentage makes no difference. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static int client;

static int is(const char *value) {
    const char *found = getenv("FAKE_CUDA");
    return found && !strcmp(found, value);
}

int cuInit(unsigned flags) {
    char word[40] = {0};
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    const char *pipe = getenv("CUDA_MPS_PIPE_DIRECTORY");
    int way = socket(AF_UNIX, SOCK_STREAM, 0);
    if (is("none")) return 100;
    snprintf(name.sun_path, sizeof name.sun_path, "%s/control", pipe ? pipe : "/tmp/nvidia-mps");
    if (connect(way, (struct sockaddr *)&name, sizeof name)) return 0;
    snprintf(word, sizeof word, "client %d", (int)getpid());
    write(way, word, strlen(word));
    memset(word, 0, sizeof word);
    read(way, word, sizeof word - 1);
    client = 1;
    return atoi(word);
}
int cuGetErrorName(int code, const char **text) { *text = code == 808 ? "CUDA_ERROR_MPS_MAX_CLIENTS_REACHED" : "CUDA_ERROR"; return 0; }
int cuDriverGetVersion(int *v) { *v = 13000; return 0; }
int cuDeviceGetCount(int *n) { *n = 1; return 0; }
int cuDeviceGet(int *d, int ordinal) { *d = ordinal; return ordinal == 0 ? 0 : 101; }
int cuDeviceGetName(char *name, int size, int d) { snprintf(name, size, "Stand-in"); return 0; }
int cuDeviceGetUuid_v2(unsigned char *uuid, int d) { int i; for (i = 0; i < 16; i++) uuid[i] = i; return 0; }
int cuDeviceGetAttribute(int *value, int which, int d) {
    const char *percentage = getenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE");
    *value = which == 16 ? 132 : 0;
    if (which == 16 && client && percentage && !is("flat")) {
        *value = 132 * atoi(percentage) / 100 / 2 * 2;
        if (*value < 8) *value = 8;
    }
    return 0;
}
