/* A libdcgm.so.4 for tests: a host engine with two GPUs, as the file in FAKE_DCGM says; a field has id and value. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

enum { BAD_PARAMETER = -1, NO_CONNECTION = -21, UNSUPPORTED = -6, NO_DATA = -35, ALL_GPUS = 0x7fffffff };

typedef struct {
    unsigned version;
    unsigned short field, type;
    int status;
    int64_t at;
    union {
        int64_t integer;
        double real;
        char text[256];
        char blob[4096];
    } value;
} value_t;

static unsigned short watched[32];
static int fields;

static double said(const char *name, double otherwise) {
    char line[200], key[100];
    double value, found = otherwise;
    FILE *file = fopen(getenv("FAKE_DCGM"), "r");
    if (!file)
        return otherwise;
    while (fgets(line, sizeof line, file))
        if (sscanf(line, "%99s %lf", key, &value) == 2 && !strcmp(key, name))
            found = value;
    fclose(file);
    return found;
}

const char *errorString(int code) { return code == NO_CONNECTION ? "Host engine connection invalid" : "Error"; }

int dcgmInit(void) { return 0; }

int dcgmConnect(const char *address, uintptr_t *handle) {
    *handle = 7;
    return strcmp(address, "127.0.0.1:5555") ? BAD_PARAMETER : (int)said("connect", 0);
}

int dcgmFieldGroupCreate(uintptr_t handle, int count, unsigned short *ids, const char *name, uintptr_t *group) {
    if (handle != 7 || count > 32 || strncmp(name, "holdfast-", 9))
        return BAD_PARAMETER;
    memcpy(watched, ids, sizeof *ids * (size_t)count);
    fields = count;
    *group = 11;
    return 0;
}

int dcgmWatchFields(uintptr_t handle, uintptr_t gpus, uintptr_t group, long long every_us, double keep_s, int samples) {
    return handle == 7 && gpus == ALL_GPUS && group == 11 && every_us == 1000000 && keep_s > 1 && samples > 0
               ? (int)said("watch", 0)
               : BAD_PARAMETER;
}

int dcgmGetAllSupportedDevices(uintptr_t handle, unsigned *ids, int *count) {
    ids[0] = 0;
    ids[1] = 3;
    *count = 2;
    return handle == 7 ? (int)said("devices", 0) : BAD_PARAMETER;
}

int dcgmGetLatestValuesForFields(uintptr_t handle, int gpu, unsigned short *ids, unsigned count, value_t *values) {
    struct timeval now;
    gettimeofday(&now, 0);
    while (said("hang", 0))
        pause();
    for (unsigned at = 0; at < count; at++) {
        char key[100];
        snprintf(key, sizeof key, "%d.%u", gpu, ids[at]);
        value_t *value = &values[at];
        if (value->version != (sizeof *value | 1 << 24))
            return BAD_PARAMETER;
        value->field = ids[at];
        value->status = 0;
        value->at = (now.tv_sec - (int64_t)said("old", 0)) * 1000000LL;
        if (ids[at] == 57) {
            value->type = 's';
            /* Read once, long ago. */
            value->at = 1000000;
            snprintf(value->value.text, sizeof value->value.text, "00000000:%X:00.0", 0x3b + gpu);
        } else if (ids[at] >= 1009) {
            value->type = 'i';
            value->value.integer = (int64_t)said(key, 0x7ffffffffffffff2LL);
        } else {
            value->type = 'd';
            value->value.real = said(key, 140737488355330.0);
        }
        int is_watched = 0;
        for (int place = 0; place < fields; place++)
            is_watched |= watched[place] == ids[at];
        if (!is_watched)
            value->status = NO_DATA;
    }
    return 0;
}
