/* A disk that forgets: loaded into the server with LD_PRELOAD by tests/faults/disk.py.
 *
 * Everything the process writes below POWERLOSS_ROOT goes to the real files as usual. Beside them
 * POWERLOSS_SHADOW holds what a disk would still have after the power failed:
 *   data/INODE       bytes of a file: only what fsync or fdatasync was called for
 *   names/@DIRECTORY entries of a directory as of its last fsync ("INODE TYPE NAME" lines)
 * Sectors of unsynced writes reach the shadow only by chance (POWERLOSS_EAGER percent of them, from
 * POWERLOSS_SEED): a disk may write back early, in any order, and tear a write in the middle.
 *
 * POWERLOSS_TRACE gets a line for each marker ("mark-...") first seen in a write, and for each
 * sync: "W nanoseconds file marker", "S begin end file", on CLOCK_MONOTONIC, which all processes
 * share. POWERLOSS_DELAY_US makes a sync take at least so long, so that an acknowledgement that
 * does not wait for it is certain to be caught.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define MOST_FDS 65536
#define SECTOR 512

struct range {
    off_t offset;
    size_t length;
};

struct file {
    ino_t inode;
    int directory;
    int whole; /* truncated since the last sync: ranges do not tell the story */
    int shadow_fd;
    int reader_fd; /* never closed: closing it would drop the process's POSIX locks on the file */
    char path[PATH_MAX];
    struct range *dirty;
    size_t dirty_count, dirty_room;
    struct file *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct file *by_fd[MOST_FDS];
static struct file *files;
static char root[PATH_MAX], shadow[PATH_MAX];
static size_t root_length;
static int trace_fd = -1;
static long delay_us;
static unsigned eager_percent;
static uint64_t random_state;

__attribute__((constructor)) static void prepare(void) {
    const char *given = getenv("POWERLOSS_ROOT");
    if (given == NULL || realpath(given, root) == NULL) return;
    root_length = strlen(root);
    snprintf(shadow, sizeof shadow, "%s", getenv("POWERLOSS_SHADOW"));
    const char *trace = getenv("POWERLOSS_TRACE");
    if (trace != NULL) trace_fd = (int)syscall(SYS_openat, AT_FDCWD, trace,
                                               O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    const char *number = getenv("POWERLOSS_DELAY_US");
    if (number != NULL) delay_us = atol(number);
    number = getenv("POWERLOSS_EAGER");
    if (number != NULL) eager_percent = (unsigned)atoi(number);
    number = getenv("POWERLOSS_SEED");
    random_state = number != NULL ? strtoull(number, NULL, 10) : 1;
    random_state = random_state * 2654435769u + 1442695040888963407u;
}

static uint64_t next_random(void) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

static long long now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec * 1000000000LL + at.tv_nsec;
}

static void *real(const char *name) { return dlsym(RTLD_NEXT, name); }

/* --- which files are ours */

static int below_root(const char *path) {
    return root_length && strncmp(path, root, root_length) == 0 &&
           (path[root_length] == '/' || path[root_length] == 0);
}

static void track(int fd, int flags) {
    char link[64], path[PATH_MAX];
    struct stat about;
    if (fd < 0 || fd >= MOST_FDS || !root_length) return;
    int saved = errno;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length > 0) path[length] = 0;
    pthread_mutex_lock(&lock);
    by_fd[fd] = NULL;
    if (length > 0 && below_root(path) && fstat(fd, &about) == 0 &&
        (S_ISREG(about.st_mode) || S_ISDIR(about.st_mode))) {
        struct file *file = files;
        while (file != NULL && file->inode != about.st_ino) file = file->next;
        if (file == NULL) {
            file = calloc(1, sizeof *file);
            file->inode = about.st_ino;
            file->directory = S_ISDIR(about.st_mode);
            file->shadow_fd = -1;
            file->reader_fd = (int)syscall(SYS_openat, AT_FDCWD, link, O_RDONLY | O_CLOEXEC);
            file->next = files;
            files = file;
        }
        snprintf(file->path, sizeof file->path, "%s", path);
        if (flags & O_TRUNC) file->whole = 1;
        by_fd[fd] = file;
    }
    pthread_mutex_unlock(&lock);
    errno = saved;
}

static struct file *tracked(int fd) {
    return fd >= 0 && fd < MOST_FDS ? by_fd[fd] : NULL;
}

static int shadow_of(struct file *file) {
    if (file->shadow_fd < 0) {
        char path[PATH_MAX + 64];
        snprintf(path, sizeof path, "%s/data/%llu", shadow, (unsigned long long)file->inode);
        file->shadow_fd =
            (int)syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    }
    return file->shadow_fd;
}

/* An inode number must not come back for another file while the shadow still speaks of it. */
static void keep_inode(const char *path) {
    char resolved[PATH_MAX];
    int saved = errno;
    if (root_length && realpath(path, resolved) != NULL && below_root(resolved))
        syscall(SYS_openat, AT_FDCWD, resolved, O_RDONLY | O_CLOEXEC);
    errno = saved;
}

/* --- writes: remembered as unsynced */

static void trace_markers(struct file *file, const char *data, size_t length) {
    const char *name = strrchr(file->path, '/'), *end = data + length, *at = data;
    while (trace_fd >= 0 && (at = memmem(at, (size_t)(end - at), "mark-", 5)) != NULL) {
        const char *stop = at + 5;
        while (stop < end && ((*stop >= '0' && *stop <= '9') || (*stop >= 'a' && *stop <= 'z')))
            stop++;
        char line[512];
        int size = snprintf(line, sizeof line, "W %lld %s %.*s\n", now(), name + 1,
                            (int)(stop - at > 80 ? 80 : stop - at), at);
        syscall(SYS_write, trace_fd, line, (size_t)size);
        at = stop;
    }
}

static void written(struct file *file, const char *data, size_t length, off_t offset) {
    if (file->dirty_count == file->dirty_room) {
        file->dirty_room = file->dirty_room ? file->dirty_room * 2 : 64;
        file->dirty = realloc(file->dirty, file->dirty_room * sizeof *file->dirty);
    }
    file->dirty[file->dirty_count++] = (struct range){offset, length};
    trace_markers(file, data, length);
    if (!eager_percent) return;
    for (size_t done = 0; done < length;) {
        size_t piece = SECTOR - (size_t)(offset + (off_t)done) % SECTOR;
        if (piece > length - done) piece = length - done;
        if (next_random() % 100 < eager_percent)
            syscall(SYS_pwrite64, shadow_of(file), data + done, piece, offset + (off_t)done);
        done += piece;
    }
}

static ssize_t write_tracked(struct file *file, int fd, const void *data, size_t length,
                             off_t offset, int positioned) {
    pthread_mutex_lock(&lock);
    ssize_t done = positioned ? syscall(SYS_pwrite64, fd, data, length, offset)
                              : syscall(SYS_write, fd, data, length);
    int saved = errno;
    if (done > 0) {
        if (!positioned) offset = lseek(fd, 0, SEEK_CUR) - done;
        written(file, data, (size_t)done, offset);
    }
    pthread_mutex_unlock(&lock);
    errno = saved;
    return done;
}

ssize_t write(int fd, const void *data, size_t length) {
    struct file *file = tracked(fd);
    if (file != NULL) return write_tracked(file, fd, data, length, 0, 0);
    static ssize_t (*next)(int, const void *, size_t);
    if (next == NULL) next = real("write");
    return next(fd, data, length);
}

ssize_t pwrite64(int fd, const void *data, size_t length, off64_t offset) {
    struct file *file = tracked(fd);
    if (file != NULL) return write_tracked(file, fd, data, length, offset, 1);
    static ssize_t (*next)(int, const void *, size_t, off64_t);
    if (next == NULL) next = real("pwrite64");
    return next(fd, data, length, offset);
}

ssize_t pwrite(int fd, const void *data, size_t length, off_t offset) {
    return pwrite64(fd, data, length, offset);
}

ssize_t writev(int fd, const struct iovec *parts, int count) {
    if (tracked(fd) == NULL) {
        static ssize_t (*next)(int, const struct iovec *, int);
        if (next == NULL) next = real("writev");
        return next(fd, parts, count);
    }
    ssize_t total = 0;
    for (int i = 0; i < count; i++) {
        ssize_t done = write(fd, parts[i].iov_base, parts[i].iov_len);
        if (done < 0) return total ? total : done;
        total += done;
        if ((size_t)done < parts[i].iov_len) break;
    }
    return total;
}

int ftruncate64(int fd, off64_t length) {
    pthread_mutex_lock(&lock);
    struct file *file = tracked(fd);
    int result = (int)syscall(SYS_ftruncate, fd, length);
    if (file != NULL) file->whole = 1;
    pthread_mutex_unlock(&lock);
    return result;
}

int ftruncate(int fd, off_t length) { return ftruncate64(fd, length); }

/* --- syncs: what was written so far is safe from now on */

static void copy_range(struct file *file, off_t offset, size_t length) {
    char buffer[65536];
    while (length > 0) {
        size_t piece = length < sizeof buffer ? length : sizeof buffer;
        ssize_t got = syscall(SYS_pread64, file->reader_fd, buffer, piece, offset);
        if (got <= 0) return;
        syscall(SYS_pwrite64, shadow_of(file), buffer, (size_t)got, offset);
        offset += got;
        length -= (size_t)got;
    }
}

static void save_data(struct file *file) {
    struct stat about;
    if (fstat(file->reader_fd, &about) != 0) return;
    if (file->whole || file->dirty_count == 0) {
        syscall(SYS_ftruncate, shadow_of(file), 0);
        copy_range(file, 0, (size_t)about.st_size);
    }
    for (size_t i = 0; i < file->dirty_count; i++)
        copy_range(file, file->dirty[i].offset, file->dirty[i].length);
    file->dirty_count = 0;
    file->whole = 0;
}

static void save_names(struct file *file) {
    char path[PATH_MAX * 2], fresh[PATH_MAX * 2 + 8], line[PATH_MAX];
    const char *relative = file->path + root_length;
    int at = snprintf(path, sizeof path, "%s/names/", shadow);
    path[at++] = '@';
    for (const char *c = *relative ? relative + 1 : ""; *c; c++)
        path[at++] = *c == '/' ? '@' : *c;
    path[at] = 0;
    snprintf(fresh, sizeof fresh, "%s.new", path);
    int out = (int)syscall(SYS_openat, AT_FDCWD, fresh, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    DIR *directory = opendir(file->path);
    struct dirent *entry;
    while (directory != NULL && (entry = readdir(directory)) != NULL) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        int size = snprintf(line, sizeof line, "%llu %c %s\n", (unsigned long long)entry->d_ino,
                            entry->d_type == DT_DIR ? 'd' : 'f', entry->d_name);
        syscall(SYS_write, out, line, (size_t)size);
    }
    if (directory != NULL) closedir(directory);
    syscall(SYS_close, out);
    syscall(SYS_renameat2, AT_FDCWD, fresh, AT_FDCWD, path, 0);
}

static int synced(int fd, long number) {
    struct file *file = tracked(fd);
    if (file == NULL) return (int)syscall(number, fd);
    long long begin = now();
    if (delay_us && !file->directory)
        nanosleep(&(struct timespec){delay_us / 1000000, delay_us % 1000000 * 1000}, NULL);
    pthread_mutex_lock(&lock);
    if (file->directory)
        save_names(file);
    else
        save_data(file);
    pthread_mutex_unlock(&lock);
    int result = (int)syscall(number, fd), saved = errno;
    if (trace_fd >= 0 && !file->directory) {
        char line[PATH_MAX + 64];
        int size = snprintf(line, sizeof line, "S %lld %lld %s\n", begin, now(),
                            strrchr(file->path, '/') + 1);
        syscall(SYS_write, trace_fd, line, (size_t)size);
    }
    errno = saved;
    return result;
}

int fsync(int fd) { return synced(fd, SYS_fsync); }
int fdatasync(int fd) { return synced(fd, SYS_fdatasync); }

/* --- names */

static int opened(int at, const char *path, int flags, va_list more) {
    int takes_mode = (flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE;
    mode_t mode = takes_mode ? va_arg(more, mode_t) : 0;
    int fd = (int)syscall(SYS_openat, at, path, flags, mode);
    track(fd, flags);
    return fd;
}

#define OPEN(at)                              \
    va_list more;                             \
    va_start(more, flags);                    \
    int fd = opened(at, path, flags, more);   \
    va_end(more);                             \
    return fd;

int open(const char *path, int flags, ...) { OPEN(AT_FDCWD) }
int open64(const char *path, int flags, ...) { OPEN(AT_FDCWD) }
int openat(int at, const char *path, int flags, ...) { OPEN(at) }
int openat64(int at, const char *path, int flags, ...) { OPEN(at) }

int close(int fd) {
    if (fd >= 0 && fd < MOST_FDS) by_fd[fd] = NULL;
    return (int)syscall(SYS_close, fd);
}

int rename(const char *from, const char *to) {
    keep_inode(to);
    return (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
}

int renameat(int from_at, const char *from, int to_at, const char *to) {
    if (to_at == AT_FDCWD) keep_inode(to);
    return (int)syscall(SYS_renameat2, from_at, from, to_at, to, 0);
}

int unlink(const char *path) {
    keep_inode(path);
    return (int)syscall(SYS_unlinkat, AT_FDCWD, path, 0);
}

int unlinkat(int at, const char *path, int flags) {
    if (at == AT_FDCWD && !(flags & AT_REMOVEDIR)) keep_inode(path);
    return (int)syscall(SYS_unlinkat, at, path, flags);
}
