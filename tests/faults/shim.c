/* Fails, or kills the process at, the n-th file operation below a folder. Loaded by LD_PRELOAD.
 *
 * All processes of a job share one page, a file that FAULTS_PAGE names: it holds the folder to
 * watch, the number of operations so far, the one to fail, and how. Operations of other folders
 * (Python's imports, the temporary folder of the system) pass and are not counted. With a log, each
 * counted operation is appended to it as "number name path".
 *
 * An operation that fails has no effect. Calls that the C library makes inside itself are not seen;
 * therefore the stream functions that write are wrapped as well as the system calls.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

struct page {
    _Atomic long enabled;
    _Atomic long count;
    long target;          /* the operation to fail, from 1; 0 for none */
    long action;          /* an errno, or -1 for SIGKILL */
    _Atomic long fired;
    char folder[1024];
    char log[1024];
    char operation[1024]; /* what was hit: name and path */
};

static struct page *shared;

__attribute__((constructor)) static void attach(void) {
    const char *path = getenv("FAULTS_PAGE");
    if (!path) return;
    int file = syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC);
    if (file < 0) return;
    void *memory = (void *)syscall(SYS_mmap, NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0L);
    syscall(SYS_close, file);
    if (memory != MAP_FAILED) shared = memory;
}

static void *next_function(const char *name) { return dlsym(RTLD_NEXT, name); }
#define NEXT(name, ...) \
    static __typeof__(name) *real; \
    if (!real) real = (__typeof__(name) *)next_function(#name)

static int is_watched(const char *path) {
    size_t length = strlen(shared->folder);
    return !strncmp(path, shared->folder, length) && (path[length] == '/' || path[length] == 0);
}

static void append_log(long number, const char *name, const char *path) {
    char line[2200];
    int length = snprintf(line, sizeof line, "%ld %s %s\n", number, name, path);
    int file = syscall(SYS_openat, AT_FDCWD, shared->log, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0) return;
    syscall(SYS_write, file, line, length < (int)sizeof line ? length : (int)sizeof line);
    syscall(SYS_close, file);
}

/* Counts an operation on a path. Returns whether it fails; errno is set then. */
static int fails_on(const char *name, const char *path) {
    if (!is_watched(path)) return 0;
    long number = atomic_fetch_add(&shared->count, 1) + 1;
    if (shared->log[0]) append_log(number, name, path);
    if (number != shared->target) return 0;
    atomic_store(&shared->fired, 1);
    snprintf(shared->operation, sizeof shared->operation, "%s %s", name, path);
    if (shared->action == -1) syscall(SYS_kill, getpid(), SIGKILL);
    errno = shared->action;
    return 1;
}

static int is_on(void) { return shared && atomic_load(&shared->enabled); }

static int fails(const char *name, int folder, const char *path) {
    if (!is_on() || !path) return 0;
    if (path[0] == '/') return fails_on(name, path);
    char link[64], whole[2 * PATH_MAX];
    if (folder == AT_FDCWD) strcpy(link, "/proc/self/cwd");
    else snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
    ssize_t length = syscall(SYS_readlink, link, whole, PATH_MAX);
    if (length <= 0) return 0;
    snprintf(whole + length, PATH_MAX, "/%s", path);
    return fails_on(name, whole);
}

static int fails_descriptor(const char *name, int file) {
    if (!is_on() || file < 0) return 0;
    char link[64], path[PATH_MAX + 1];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = syscall(SYS_readlink, link, path, PATH_MAX);
    if (length <= 0) return 0;
    path[length] = 0;
    return fails_on(name, path);
}

#define OPEN(name) \
    int name(const char *path, int flags, ...) { \
        static int (*real)(const char *, int, ...); \
        if (!real) real = next_function(#name); \
        va_list rest; va_start(rest, flags); mode_t mode = va_arg(rest, mode_t); va_end(rest); \
        return fails("open", AT_FDCWD, path) ? -1 : real(path, flags, mode); \
    }
OPEN(open)
OPEN(open64)
#define OPENAT(name) \
    int name(int folder, const char *path, int flags, ...) { \
        static int (*real)(int, const char *, int, ...); \
        if (!real) real = next_function(#name); \
        va_list rest; va_start(rest, flags); mode_t mode = va_arg(rest, mode_t); va_end(rest); \
        return fails("open", folder, path) ? -1 : real(folder, path, flags, mode); \
    }
OPENAT(openat)
OPENAT(openat64)
#define FOPEN(name) \
    FILE *name(const char *path, const char *mode) { \
        NEXT(name); \
        return fails("open", AT_FDCWD, path) ? NULL : real(path, mode); \
    }
FOPEN(fopen)
FOPEN(fopen64)

ssize_t write(int file, const void *data, size_t size) {
    NEXT(write);
    return fails_descriptor("write", file) ? -1 : real(file, data, size);
}
ssize_t pwrite(int file, const void *data, size_t size, off_t offset) {
    NEXT(pwrite);
    return fails_descriptor("write", file) ? -1 : real(file, data, size, offset);
}
ssize_t pwrite64(int file, const void *data, size_t size, off64_t offset) {
    NEXT(pwrite64);
    return fails_descriptor("write", file) ? -1 : real(file, data, size, offset);
}
ssize_t writev(int file, const struct iovec *parts, int count) {
    NEXT(writev);
    return fails_descriptor("write", file) ? -1 : real(file, parts, count);
}
ssize_t sendfile(int to, int from, off_t *offset, size_t size) {
    static ssize_t (*real)(int, int, off_t *, size_t);
    if (!real) real = next_function("sendfile");
    return fails_descriptor("write", to) ? -1 : real(to, from, offset, size);
}
ssize_t sendfile64(int to, int from, off64_t *offset, size_t size) {
    static ssize_t (*real)(int, int, off64_t *, size_t);
    if (!real) real = next_function("sendfile64");
    return fails_descriptor("write", to) ? -1 : real(to, from, offset, size);
}
ssize_t copy_file_range(int from, off64_t *in, int to, off64_t *out, size_t size, unsigned flags) {
    NEXT(copy_file_range);
    return fails_descriptor("write", to) ? -1 : real(from, in, to, out, size, flags);
}
size_t fwrite(const void *data, size_t size, size_t count, FILE *stream) {
    NEXT(fwrite);
    return fails_descriptor("write", fileno(stream)) ? 0 : real(data, size, count, stream);
}
int fflush(FILE *stream) {
    NEXT(fflush);
    return stream && fails_descriptor("write", fileno(stream)) ? EOF : real(stream);
}
int fsync(int file) {
    NEXT(fsync);
    return fails_descriptor("fsync", file) ? -1 : real(file);
}
int fdatasync(int file) {
    NEXT(fdatasync);
    return fails_descriptor("fsync", file) ? -1 : real(file);
}
int rename(const char *from, const char *to) {
    NEXT(rename);
    return fails("rename", AT_FDCWD, to) ? -1 : real(from, to);
}
int renameat(int from_folder, const char *from, int to_folder, const char *to) {
    NEXT(renameat);
    return fails("rename", to_folder, to) ? -1 : real(from_folder, from, to_folder, to);
}
int renameat2(int from_folder, const char *from, int to_folder, const char *to, unsigned flags) {
    NEXT(renameat2);
    return fails("rename", to_folder, to) ? -1 : real(from_folder, from, to_folder, to, flags);
}
int link(const char *from, const char *to) {
    NEXT(link);
    return fails("link", AT_FDCWD, to) ? -1 : real(from, to);
}
int linkat(int from_folder, const char *from, int to_folder, const char *to, int flags) {
    NEXT(linkat);
    return fails("link", to_folder, to) ? -1 : real(from_folder, from, to_folder, to, flags);
}
int unlink(const char *path) {
    NEXT(unlink);
    return fails("unlink", AT_FDCWD, path) ? -1 : real(path);
}
int unlinkat(int folder, const char *path, int flags) {
    NEXT(unlinkat);
    return fails("unlink", folder, path) ? -1 : real(folder, path, flags);
}
int rmdir(const char *path) {
    NEXT(rmdir);
    return fails("unlink", AT_FDCWD, path) ? -1 : real(path);
}
int mkdir(const char *path, mode_t mode) {
    NEXT(mkdir);
    return fails("mkdir", AT_FDCWD, path) ? -1 : real(path, mode);
}
int mkdirat(int folder, const char *path, mode_t mode) {
    NEXT(mkdirat);
    return fails("mkdir", folder, path) ? -1 : real(folder, path, mode);
}
int flock(int file, int operation) {
    static int (*real)(int, int);
    if (!real) real = next_function("flock");
    return fails_descriptor("flock", file) ? -1 : real(file, operation);
}
void *mmap(void *address, size_t size, int protection, int flags, int file, off_t offset) {
    if (!(flags & MAP_ANONYMOUS) && fails_descriptor("mmap", file)) return MAP_FAILED;
    return (void *)syscall(SYS_mmap, address, size, protection, flags, file, offset);
}
void *mmap64(void *address, size_t size, int protection, int flags, int file, off64_t offset) {
    if (!(flags & MAP_ANONYMOUS) && fails_descriptor("mmap", file)) return MAP_FAILED;
    return (void *)syscall(SYS_mmap, address, size, protection, flags, file, offset);
}
