/* A stand-in for libcuda.so.1, where there is no GPU: one device of 132 SMs, a client of fake_control.py.
   FAKE_CUDA=none: no device; FAKE_CUDA=flat: the percentage makes no difference; FAKE_CUDA=late: a process is
   a client, and is told its SMs, no sooner than it makes a context. */
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

static int join_mps(void) {
    char word[40] = {0};
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    const char *pipe = getenv("CUDA_MPS_PIPE_DIRECTORY");
    int way = socket(AF_UNIX, SOCK_STREAM, 0);
    snprintf(name.sun_path, sizeof name.sun_path, "%s/control", pipe ? pipe : "/tmp/nvidia-mps");
    if (connect(way, (struct sockaddr *)&name, sizeof name)) return 0;
    snprintf(word, sizeof word, "client %d", (int)getpid());
    write(way, word, strlen(word));
    memset(word, 0, sizeof word);
    read(way, word, sizeof word - 1);
    client = 1;
    return atoi(word);
}
int cuInit(unsigned flags) { return is("none") ? 100 : is("late") ? 0 : join_mps(); }
int cuGetErrorName(int code, const char **text) { *text = code == 808 ? "CUDA_ERROR_MPS_MAX_CLIENTS_REACHED" : "CUDA_ERROR"; return 0; }
int cuDriverGetVersion(int *v) { *v = 13000; return 0; }
int cuDeviceGetCount(int *n) { *n = 1; return 0; }
int cuDeviceGet(int *d, int ordinal) { *d = ordinal; return ordinal == 0 ? 0 : 101; }
int cuDeviceGetName(char *name, int size, int d) { snprintf(name, size, "Stand-in"); return 0; }
int cuDeviceGetUuid_v2(unsigned char *uuid, int d) { int i; for (i = 0; i < 16; i++) uuid[i] = i; return 0; }
static int allowed(void) {
    const char *percentage = getenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE");
    int count = percentage ? 132 * atoi(percentage) / 100 / 2 * 2 : 132;
    return !client || is("flat") ? 132 : count < 8 ? 8 : count;
}
int cuDeviceGetAttribute(int *value, int which, int d) {
    *value = which != 16 ? 0 : is("late") ? 132 : allowed();
    return 0;
}
int cuDevicePrimaryCtxRetain(void **context, int d) { *context = &client; return is("late") ? join_mps() : 0; }
int cuDevicePrimaryCtxRelease_v2(int d) { return 0; }
int cuCtxSetCurrent(void *context) { return context ? 0 : 201; }
int cuCtxGetExecAffinity(int *affinity, int type) { affinity[0] = type; affinity[1] = allowed(); return 0; }
