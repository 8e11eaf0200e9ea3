/* What a process tells the disk: preloaded, it notes each write, name, removal and sync below a folder, in order.
 *
 * LAKEMQ_TEST_DISK names the folder, LAKEMQ_TEST_DISK_NOTES the file of notes, LAKEMQ_TEST_DISK_KEPT a folder where
 * what is removed stays under the number of its inode. A note is a line: kind, inode, path, with tabs between.
 * Each is written after the call has succeeded. Calls with paths that are not absolute are not noted.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))real(#name))
#define TEXT 8192

static const char *folder, *kept;
static int notes = -1;

static void *real(const char *name) { return dlsym(RTLD_NEXT, name); }

__attribute__((constructor)) static void begin(void) {
    const char *name = getenv("LAKEMQ_TEST_DISK_NOTES");
    folder = getenv("LAKEMQ_TEST_DISK");
    kept = getenv("LAKEMQ_TEST_DISK_KEPT");
    if (name && folder && kept)
        notes = REAL(open)(name, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
}

static int is_ours(const char *path) {
    return notes >= 0 && path && !strncmp(path, folder, strlen(folder));
}

static void note(const char *kind, ino_t inode, const char *path) {
    char line[TEXT];
    int before = errno, size = snprintf(line, sizeof line, "%s\t%lu\t%s\n", kind, (unsigned long)inode, path);
    if (REAL(write)(notes, line, size) != size)
        abort();
    errno = before;
}

static void note_path(const char *kind, const char *path) {
    struct stat found;
    if (is_ours(path) && !lstat(path, &found))
        note(kind, found.st_ino, path);
}

static void note_file(const char *kind, int file) {
    char link[64], path[PATH_MAX];
    struct stat found;
    int before = errno;
    if (notes < 0 || file == notes)
        return;
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size > 0) {
        path[size] = 0;
        if (is_ours(path) && !fstat(file, &found))
            note(kind, found.st_ino, path);
    }
    errno = before;
}

/* The inode a path is about to lose, which stays under another name; 0 where there is none. */
static ino_t keep(const char *path) {
    struct stat found;
    char name[PATH_MAX];
    int before = errno;
    if (!is_ours(path) || lstat(path, &found)) {
        errno = before;
        return 0;
    }
    if (S_ISREG(found.st_mode)) {
        snprintf(name, sizeof name, "%s/%lu", kept, (unsigned long)found.st_ino);
        REAL(link)(path, name);
    }
    errno = before;
    return found.st_ino;
}

/* -- files ------------------------------------------------------------------------------------------- */

static int opened(int file, const char *path, int flags) {
    int is_unnamed = (flags & O_TMPFILE) == O_TMPFILE;
    if (file >= 0 && is_ours(path) && !is_unnamed && flags & (O_CREAT | O_TRUNC)) {
        note_path("name", path);
        note_path("write", path);
    }
    return file;
}

#define MODE(flags, last) \
    mode_t mode = 0; \
    if ((flags) & (O_CREAT | O_TMPFILE)) { \
        va_list rest; \
        va_start(rest, last); \
        mode = va_arg(rest, mode_t); \
        va_end(rest); \
    }

int open(const char *path, int flags, ...) {
    MODE(flags, flags)
    return opened(REAL(open)(path, flags, mode), path, flags);
}

int open64(const char *path, int flags, ...) {
    MODE(flags, flags)
    return opened(REAL(open64)(path, flags, mode), path, flags);
}

int openat(int at, const char *path, int flags, ...) {
    MODE(flags, flags)
    return opened(REAL(openat)(at, path, flags, mode), path, flags);
}

int openat64(int at, const char *path, int flags, ...) {
    MODE(flags, flags)
    return opened(REAL(openat64)(at, path, flags, mode), path, flags);
}

#define WRITES(name, arguments, ...) \
    ssize_t name arguments { \
        ssize_t size = REAL(name)(file, __VA_ARGS__); \
        if (size > 0) \
            note_file("write", file); \
        return size; \
    }

WRITES(write, (int file, const void *bytes, size_t count), bytes, count)
WRITES(pwrite, (int file, const void *bytes, size_t count, off_t at), bytes, count, at)
WRITES(pwrite64, (int file, const void *bytes, size_t count, off64_t at), bytes, count, at)
WRITES(writev, (int file, const struct iovec *parts, int count), parts, count)

int fsync(int file) {
    int failed = REAL(fsync)(file);
    if (!failed)
        note_file("sync", file);
    return failed;
}

int fdatasync(int file) {
    int failed = REAL(fdatasync)(file);
    if (!failed)
        note_file("sync", file);
    return failed;
}

/* -- names ------------------------------------------------------------------------------------------- */

static int named(int failed, const char *path) {
    if (!failed)
        note_path("name", path);
    return failed;
}

static int made(int failed, const char *path) {
    if (!failed)
        note_path("folder", path);
    return failed;
}

int link(const char *from, const char *to) { return named(REAL(link)(from, to), to); }

int linkat(int from_at, const char *from, int to_at, const char *to, int flags) {
    return named(REAL(linkat)(from_at, from, to_at, to, flags), to);
}

int mkdir(const char *path, mode_t mode) { return made(REAL(mkdir)(path, mode), path); }

static int moved(int failed, ino_t inode, const char *from, const char *to) {
    if (!failed && inode)
        note("gone", inode, from);
    return named(failed, to);
}

int rename(const char *from, const char *to) {
    ino_t inode = keep(from);
    keep(to);
    return moved(REAL(rename)(from, to), inode, from, to);
}

int renameat2(int from_at, const char *from, int to_at, const char *to, unsigned flags) {
    ino_t inode = keep(from);
    keep(to);
    return moved(REAL(renameat2)(from_at, from, to_at, to, flags), inode, from, to);
}

static int removed(int failed, ino_t inode, const char *path) {
    if (!failed && inode)
        note("gone", inode, path);
    return failed;
}

int unlink(const char *path) {
    ino_t inode = keep(path);
    return removed(REAL(unlink)(path), inode, path);
}

int unlinkat(int at, const char *path, int flags) {
    ino_t inode = keep(path);
    return removed(REAL(unlinkat)(at, path, flags), inode, path);
}

int rmdir(const char *path) {
    ino_t inode = keep(path);
    return removed(REAL(rmdir)(path), inode, path);
}
