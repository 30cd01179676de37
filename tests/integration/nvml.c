/* A libnvidia-ml.so.1 for tests: two GPUs, as the file in FAKE_NVML says. A call blocks while that names a FIFO. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct {
    char legacy[16];
    unsigned domain, bus, device, id, subsystem;
    char address[32];
} pci_t;

/* The number behind a name in the file, or what it is else. */
static long said(const char *name, long otherwise) {
    char line[200], key[100];
    long value, found = otherwise;
    FILE *file = fopen(getenv("FAKE_NVML"), "r");
    if (!file)
        return otherwise;
    while (fgets(line, sizeof line, file))
        if (sscanf(line, "%99s %ld", key, &value) == 2 && !strcmp(key, name))
            found = value;
    fclose(file);
    return found;
}

static int number(void *gpu) { return (int)(long)gpu - 1; }

static long of(void *gpu, const char *name, long otherwise) {
    char key[100];
    snprintf(key, sizeof key, "%d.%s", number(gpu), name);
    return said(key, otherwise);
}

int nvmlInitWithFlags(unsigned flags) { return (int)said("init", 0); }
int nvmlInit_v2(void) { return (int)said("init", 0); }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int code) { return code == 15 ? "GPU is lost" : code == 9 ? "Driver Not Loaded" : "Error"; }

int nvmlDeviceGetCount_v2(unsigned *count) {
    *count = (unsigned)said("count", 2);
    return 0;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **gpu) {
    *gpu = (void *)(long)(index + 1);
    return (int)of(*gpu, "handle", 0);
}

int nvmlDeviceGetPciInfo_v3(void *gpu, pci_t *pci) {
    memset(pci, 0, sizeof *pci);
    snprintf(pci->address, sizeof pci->address, "00000000:%X:00.0", 0x3b + number(gpu));
    return 0;
}

int nvmlDeviceGetUUID(void *gpu, char *uuid, unsigned length) {
    snprintf(uuid, length, "GPU-%d", number(gpu));
    return 0;
}

int nvmlDeviceGetTemperature(void *gpu, int sensor, unsigned *degrees) {
    char byte;
    int fifo = open(getenv("FAKE_NVML_FIFO"), O_RDONLY);
    if (fifo >= 0) {
        read(fifo, &byte, 1);
        close(fifo);
    }
    *degrees = (unsigned)of(gpu, "temperature", 50);
    return (int)of(gpu, "error", 0);
}

int nvmlDeviceGetRemappedRows(void *gpu, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed) {
    *corrected = *uncorrected = 0;
    *pending = (unsigned)of(gpu, "pending", 0);
    *failed = (unsigned)of(gpu, "failed", 0);
    return 0;
}

int nvmlDeviceGetCurrPcieLinkWidth(void *gpu, unsigned *width) {
    *width = (unsigned)of(gpu, "width", 16);
    return 0;
}

int nvmlDeviceGetMaxPcieLinkWidth(void *gpu, unsigned *width) {
    *width = 16;
    return 0;
}
