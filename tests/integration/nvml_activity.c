/* nvml.c, and what NVML measures of activity: utilization, NVLink's counters, PCIe, processes, GPM. */
#include <stdint.h>

#include "nvml.c"

enum { UNSUPPORTED = 3, METRICS = 477, ALL_LINKS = 0xffffffff };

typedef struct { unsigned gpu, memory; } utilization_t;
typedef union { double real; unsigned number; unsigned long long wide; } value_t;
typedef struct {
    unsigned field, scope;
    int64_t at, latency;
    int type, code;
    value_t value;
} field_t;
typedef struct { int gpu, serial; } sample_t;
typedef struct {
    unsigned id;
    int code;
    double value;
    const char *names[3];
} metric_t;
typedef struct {
    unsigned version, count;
    sample_t *first, *second;
    metric_t metrics[METRICS];
} metrics_t;
typedef struct { unsigned version, supported; } support_t;
typedef struct { unsigned pid; unsigned long long memory; unsigned instances[2]; } process_t;

static int serial;
/* Samples that are not freed. */
static int samples;

/* Note a call, so that a test can count. */
static void noted(const char *name) {
    FILE *file = getenv("FAKE_NVML_CALLS") ? fopen(getenv("FAKE_NVML_CALLS"), "a") : 0;
    if (file) {
        fprintf(file, "%s\n", name);
        fclose(file);
    }
}

int nvmlDeviceGetUtilizationRates(void *gpu, utilization_t *found) {
    found->gpu = (unsigned)of(gpu, "busy", 70);
    found->memory = 1;
    return 0;
}

int nvmlDeviceGetFieldValues(void *gpu, int count, field_t *fields) {
    noted("fields");
    if (said("crash", 0))
        abort();
    for (int at = 0; at < count; at++) {
        int sent = fields[at].field == 138, received = fields[at].field == 139;
        fields[at].code = (sent || received) && fields[at].scope == ALL_LINKS ? (int)of(gpu, "links", 0) : UNSUPPORTED;
        fields[at].type = 3;
        fields[at].value.wide = (unsigned long long)of(gpu, sent ? "sent" : "received", 0);
    }
    return 0;
}

int nvmlDeviceGetPcieThroughput(void *gpu, int counter, unsigned *kilobytes) {
    *kilobytes = (unsigned)of(gpu, counter ? "pcie_in" : "pcie_out", 0);
    return 0;
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *gpu, unsigned *count, process_t *found) {
    unsigned room = *count;
    *count = 1;
    if (room < 1)
        return 7;
    found[0].pid = (unsigned)of(gpu, "pid", 0);
    return 0;
}

int nvmlGpmQueryDeviceSupport(void *gpu, support_t *found) {
    noted("support");
    if (found->version != 1)
        return 25;
    found->supported = (unsigned)of(gpu, "gpm", 0);
    return 0;
}

int nvmlGpmSampleAlloc(sample_t **sample) {
    *sample = calloc(1, sizeof **sample);
    samples++;
    return 0;
}

int nvmlGpmSampleFree(sample_t *sample) {
    free(sample);
    samples--;
    return 0;
}

int nvmlGpmSampleGet(void *gpu, sample_t *sample) {
    sample->gpu = number(gpu);
    sample->serial = ++serial;
    return (int)of(gpu, "gpm_error", 0);
}

/* Values are in the file in thousandths. */
int nvmlGpmMetricsGet(metrics_t *wanted) {
    char key[100];
    if (wanted->version != 1 || wanted->first->serial >= wanted->second->serial || wanted->first->gpu != wanted->second->gpu || samples > 4)
        return 2;
    for (unsigned at = 0; at < wanted->count; at++) {
        metric_t *metric = &wanted->metrics[at];
        snprintf(key, sizeof key, "gpm%u", metric->id);
        metric->value = (double)of((void *)(long)(wanted->first->gpu + 1), key, 0) / 1000;
        metric->code = metric->value < 0 ? UNSUPPORTED : 0;
    }
    return 0;
}
