/* A libnvidia-ml.so.1 that reports the GPUs of the environment variable FAKE_GPUS, one after the other:
   "name|bytes|free bytes|major|minor|uuid;...". Without the variable it says that no driver is loaded. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OK = 0, INVALID_ARGUMENT = 2, NOT_FOUND = 6, DRIVER_NOT_LOADED = 9, MOST = 16 };
typedef struct {
  char name[96], uuid[96];
  unsigned long long total, free;
  int major, minor;
} gpu;
static gpu gpus[MOST];
static unsigned count;

int nvmlInitWithFlags(unsigned flags) {
  const char *at = getenv("FAKE_GPUS");
  count = 0;
  if (!at) return DRIVER_NOT_LOADED;
  while (*at && count < MOST) {
    gpu *g = &gpus[count];
    if (sscanf(at, "%95[^|]|%llu|%llu|%d|%d|%95[^;]", g->name, &g->total, &g->free, &g->major, &g->minor, g->uuid) != 6)
      abort();
    count++;
    at = strchr(at, ';');
    if (!at) break;
    at++;
  }
  return OK;
}
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int code) { return code == NOT_FOUND ? "Not Found" : "Invalid Argument"; }

int nvmlSystemGetDriverVersion(char *text, unsigned size) { return snprintf(text, size, "580.65.06"), OK; }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { return *version = 13000, OK; }
int nvmlSystemGetCudaDriverVersion(int *version) { return *version = 13000, OK; }

int nvmlDeviceGetCount_v2(unsigned *found) { return *found = count, OK; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
  if (index >= count) return INVALID_ARGUMENT;
  return *handle = &gpus[index], OK;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle) {
  for (unsigned i = 0; i < count; i++)
    if (!strcmp(gpus[i].uuid, uuid)) return *handle = &gpus[i], OK;
  return NOT_FOUND;
}
int nvmlDeviceGetIndex(void *handle, unsigned *index) { return *index = (gpu *)handle - gpus, OK; }
int nvmlDeviceGetMinorNumber(void *handle, unsigned *index) { return *index = (gpu *)handle - gpus, OK; }
int nvmlDeviceGetUUID(void *handle, char *text, unsigned size) {
  return snprintf(text, size, "%s", ((gpu *)handle)->uuid), OK;
}
int nvmlDeviceGetName(void *handle, char *text, unsigned size) {
  return snprintf(text, size, "%s", ((gpu *)handle)->name), OK;
}
typedef struct { unsigned long long total, free, used; } memory;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory_v2;
int nvmlDeviceGetMemoryInfo(void *handle, memory *m) {
  gpu *g = handle;
  return m->total = g->total, m->free = g->free, m->used = g->total - g->free, OK;
}
int nvmlDeviceGetMemoryInfo_v2(void *handle, memory_v2 *m) {
  gpu *g = handle;
  return m->total = g->total, m->reserved = 0, m->free = g->free, m->used = g->total - g->free, OK;
}
int nvmlDeviceGetCudaComputeCapability(void *handle, int *major, int *minor) {
  return *major = ((gpu *)handle)->major, *minor = ((gpu *)handle)->minor, OK;
}
int nvmlDeviceGetP2PStatus(void *one, void *other, int kind, int *status) { return *status = 0, OK; }
int nvmlDeviceGetNumaNodeId(void *handle, unsigned *node) { return *node = 0, OK; }
