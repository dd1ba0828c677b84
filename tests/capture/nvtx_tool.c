/* A tool that listens to NVTX version 3, for the tests: loaded through NVTX_INJECTION64_PATH, it writes each call
   to the file NVTX_TOOL_LOG, one line each: what, thread's depth, domain, name. Needs no NVTX header: the interface
   between programs and tools is fixed (nvtxDetail/nvtxTypes.h of NVIDIA/NVTX). */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct {
  uint16_t version, size;
  uint32_t category;
  int32_t color_type;
  uint32_t color;
  int32_t payload_type, reserved;
  uint64_t payload;
  int32_t message_type;
  const char **message; /* a registered string: the handle that register_string gave */
} Attributes;

typedef struct {
  size_t struct_size;
  int (*get_table)(int module, void ****table, unsigned *size);
} Callbacks;

typedef const void *(*GetExportTable)(uint32_t id);

enum { CORE2 = 5, EXPORT_CALLBACKS = 1 };
enum { MARK = 1, START = 2, END = 3, PUSH = 4, POP = 5, REGISTER = 10, CREATE = 12 };

static FILE *out;
static __thread int depth;
static uint64_t next_id = 1;

static const char *text(const Attributes *a) { return a->message ? *a->message : "?"; }

static void say(const char *what, const char **domain, const char *name, uint64_t id) {
  fprintf(out, "%s\t%d\t%s\t%s\t%llu\n", what, depth, domain ? *domain : "", name, (unsigned long long)id);
  fflush(out);
}

static void *keep(const char *name) {
  const char **handle = malloc(sizeof *handle);
  *handle = strdup(name);
  return handle;
}

static void *create(const char *name) { return keep(name); }
static void *register_string(void *domain, const char *name) { (void)domain; return keep(name); }
static void mark(void *domain, const Attributes *a) { say("mark", domain, text(a), 0); }
static int push(void *domain, const Attributes *a) { say("push", domain, text(a), 0); return depth++; }
static int pop(void *domain) { depth--; say("pop", domain, "", 0); return depth; }
static uint64_t start(void *domain, const Attributes *a) {
  uint64_t id = __sync_fetch_and_add(&next_id, 1);
  say("start", domain, text(a), id);
  return id;
}
static void end(void *domain, uint64_t id) { say("end", domain, "", id); }

int InitializeInjectionNvtx2(GetExportTable get) {
  const Callbacks *callbacks = get(EXPORT_CALLBACKS);
  void ***table = NULL;
  unsigned size = 0;
  const char *path = getenv("NVTX_TOOL_LOG");
  if (!path || !(out = fopen(path, "a"))) return 0;
  if (!callbacks || !callbacks->get_table(CORE2, &table, &size) || size <= CREATE) return 0;
  *table[MARK] = mark;
  *table[START] = start;
  *table[END] = end;
  *table[PUSH] = push;
  *table[POP] = pop;
  *table[REGISTER] = register_string;
  *table[CREATE] = create;
  return 1;
}
