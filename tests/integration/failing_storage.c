// Lets writes and syncs of files below FAILING_DIRECTORY fail with EIO while the file FAILING_FLAG exists.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

static int fails(int fd) {
    const char *flag = getenv("FAILING_FLAG"), *directory = getenv("FAILING_DIRECTORY");
    char link[64], target[PATH_MAX];
    int before = errno;
    if (flag == NULL || directory == NULL || access(flag, F_OK) != 0) { errno = before; return 0; }
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, target, sizeof target - 1);
    target[length < 0 ? 0 : length] = 0;
    int below = strncmp(target, directory, strlen(directory)) == 0;
    errno = below ? EIO : before;
    return below;
}

#define FAILING(type, name, parameters, arguments) \
    type name parameters { \
        if (fails(fd)) return -1; \
        type(*real) parameters = (type(*) parameters)dlsym(RTLD_NEXT, #name); \
        return real arguments; \
    }

FAILING(ssize_t, write, (int fd, const void *data, size_t size), (fd, data, size))
FAILING(ssize_t, pwrite, (int fd, const void *data, size_t size, off_t at), (fd, data, size, at))
FAILING(ssize_t, pwrite64, (int fd, const void *data, size_t size, off_t at), (fd, data, size, at))
FAILING(ssize_t, pwritev, (int fd, const struct iovec *data, int count, off_t at), (fd, data, count, at))
FAILING(int, fsync, (int fd), (fd))
FAILING(int, fdatasync, (int fd), (fd))
