//! The allowlist of system calls. The allowlist contains the calls that developer programs use: shells, compilers,
//! interpreters, package managers, version control, debuggers of their own child processes, databases and terminals.
//!
//! The allowlist is based on the default lists of container engines, without calls that need a privilege, and tested
//! with developer programs (`tests/escape/tools.rs`). A call that no list contains fails with ENOSYS, as on a kernel
//! that lacks the call.

use nix::libc;

/// Calls that exist on every processor architecture.
#[rustfmt::skip]
pub(super) const EVERYWHERE: &[libc::c_long] = &[
    // Files and directories, by path and by descriptor. The filter checks the request of `ioctl`.
    libc::SYS_read, libc::SYS_write, libc::SYS_close, libc::SYS_fstat, libc::SYS_lseek, libc::SYS_pread64,
    libc::SYS_pwrite64, libc::SYS_readv, libc::SYS_writev, libc::SYS_preadv, libc::SYS_pwritev,
    libc::SYS_preadv2, libc::SYS_pwritev2, libc::SYS_sendfile, libc::SYS_copy_file_range, libc::SYS_splice,
    libc::SYS_tee, libc::SYS_vmsplice, libc::SYS_fadvise64, libc::SYS_readahead, libc::SYS_fallocate,
    libc::SYS_ftruncate, libc::SYS_truncate, libc::SYS_fsync, libc::SYS_fdatasync, libc::SYS_sync,
    libc::SYS_syncfs, libc::SYS_flock, libc::SYS_fcntl, libc::SYS_dup, libc::SYS_dup3,
    libc::SYS_close_range, libc::SYS_pipe2, libc::SYS_openat, libc::SYS_openat2, libc::SYS_mkdirat,
    libc::SYS_mknodat, libc::SYS_unlinkat, libc::SYS_linkat, libc::SYS_symlinkat, libc::SYS_readlinkat,
    libc::SYS_renameat2, libc::SYS_faccessat, libc::SYS_faccessat2, libc::SYS_fchmod, libc::SYS_fchmodat,
    libc::SYS_fchown, libc::SYS_fchownat, libc::SYS_newfstatat, libc::SYS_statx, libc::SYS_statfs,
    libc::SYS_fstatfs, libc::SYS_utimensat, libc::SYS_umask, libc::SYS_chdir, libc::SYS_fchdir,
    libc::SYS_getcwd, libc::SYS_getdents64, libc::SYS_setxattr, libc::SYS_lsetxattr, libc::SYS_fsetxattr,
    libc::SYS_getxattr, libc::SYS_lgetxattr, libc::SYS_fgetxattr, libc::SYS_listxattr, libc::SYS_llistxattr,
    libc::SYS_flistxattr, libc::SYS_removexattr, libc::SYS_lremovexattr, libc::SYS_fremovexattr,
    libc::SYS_name_to_handle_at, libc::SYS_inotify_init1, libc::SYS_inotify_add_watch,
    libc::SYS_inotify_rm_watch, libc::SYS_io_setup, libc::SYS_io_destroy, libc::SYS_io_submit,
    libc::SYS_io_cancel, libc::SYS_io_getevents,
    // Memory.
    libc::SYS_brk, libc::SYS_mmap, libc::SYS_munmap, libc::SYS_mremap, libc::SYS_mprotect, libc::SYS_msync,
    libc::SYS_mincore, libc::SYS_madvise, libc::SYS_process_madvise, libc::SYS_mlock, libc::SYS_mlock2,
    libc::SYS_mlockall, libc::SYS_munlock, libc::SYS_munlockall, libc::SYS_remap_file_pages,
    libc::SYS_memfd_create, libc::SYS_membarrier, libc::SYS_pkey_alloc, libc::SYS_pkey_free,
    libc::SYS_pkey_mprotect, libc::SYS_mseal,
    // Processes and threads. The filter checks the flags of `clone`. The filter never allows `clone3`.
    libc::SYS_execve, libc::SYS_execveat, libc::SYS_exit, libc::SYS_exit_group, libc::SYS_wait4,
    libc::SYS_waitid, libc::SYS_kill, libc::SYS_tkill, libc::SYS_tgkill, libc::SYS_pidfd_open,
    libc::SYS_pidfd_send_signal, libc::SYS_getpid, libc::SYS_getppid, libc::SYS_gettid, libc::SYS_getpgid,
    libc::SYS_setpgid, libc::SYS_getsid, libc::SYS_setsid, libc::SYS_getuid, libc::SYS_geteuid,
    libc::SYS_getresuid, libc::SYS_getgid, libc::SYS_getegid, libc::SYS_getresgid, libc::SYS_getgroups,
    libc::SYS_setuid, libc::SYS_setgid, libc::SYS_setreuid, libc::SYS_setregid, libc::SYS_setresuid,
    libc::SYS_setresgid, libc::SYS_setfsuid, libc::SYS_setfsgid, libc::SYS_setgroups, libc::SYS_capget,
    libc::SYS_capset, libc::SYS_prctl, libc::SYS_seccomp, libc::SYS_landlock_create_ruleset,
    libc::SYS_landlock_add_rule, libc::SYS_landlock_restrict_self, libc::SYS_set_tid_address,
    libc::SYS_set_robust_list, libc::SYS_get_robust_list, libc::SYS_rseq, libc::SYS_restart_syscall,
    libc::SYS_getrusage, libc::SYS_times, libc::SYS_sysinfo, libc::SYS_uname, libc::SYS_getrandom,
    libc::SYS_getcpu,
    // Debuggers of processes in the bottle. A debugger can attach only to processes of the same user, within the limits
    // of Yama and of the pid namespace.
    libc::SYS_ptrace, libc::SYS_process_vm_readv, libc::SYS_process_vm_writev, libc::SYS_kcmp,
    // Signals.
    libc::SYS_rt_sigaction, libc::SYS_rt_sigprocmask, libc::SYS_rt_sigreturn, libc::SYS_rt_sigpending,
    libc::SYS_rt_sigtimedwait, libc::SYS_rt_sigqueueinfo, libc::SYS_rt_tgsigqueueinfo,
    libc::SYS_rt_sigsuspend, libc::SYS_sigaltstack, libc::SYS_signalfd4,
    // Waiting for threads, descriptors and timers.
    libc::SYS_futex, libc::SYS_futex_waitv, libc::SYS_epoll_create1, libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait, libc::SYS_epoll_pwait2, libc::SYS_pselect6, libc::SYS_ppoll, libc::SYS_eventfd2,
    libc::SYS_nanosleep, libc::SYS_clock_nanosleep, libc::SYS_clock_gettime, libc::SYS_clock_getres,
    libc::SYS_gettimeofday, libc::SYS_getitimer, libc::SYS_setitimer, libc::SYS_timer_create,
    libc::SYS_timer_settime, libc::SYS_timer_gettime, libc::SYS_timer_getoverrun, libc::SYS_timer_delete,
    libc::SYS_timerfd_create, libc::SYS_timerfd_settime, libc::SYS_timerfd_gettime,
    // The scheduler. The filter refuses the calls whose arguments select pid 1.
    libc::SYS_sched_yield, libc::SYS_sched_getparam, libc::SYS_sched_getscheduler,
    libc::SYS_sched_get_priority_max, libc::SYS_sched_get_priority_min, libc::SYS_sched_rr_get_interval,
    libc::SYS_sched_getaffinity, libc::SYS_sched_getattr, libc::SYS_getpriority, libc::SYS_ioprio_get,
    // Sockets. The filter checks the address family of `socket` and `socketpair`.
    libc::SYS_connect, libc::SYS_accept, libc::SYS_accept4, libc::SYS_bind, libc::SYS_listen,
    libc::SYS_getsockname, libc::SYS_getpeername, libc::SYS_setsockopt, libc::SYS_getsockopt,
    libc::SYS_sendto, libc::SYS_recvfrom, libc::SYS_sendmsg, libc::SYS_recvmsg, libc::SYS_sendmmsg,
    libc::SYS_recvmmsg, libc::SYS_shutdown,
    // Message queues, semaphores and shared memory of the bottle's ipc namespace.
    libc::SYS_shmget, libc::SYS_shmat, libc::SYS_shmdt, libc::SYS_shmctl, libc::SYS_semget, libc::SYS_semop,
    libc::SYS_semctl, libc::SYS_semtimedop, libc::SYS_msgget, libc::SYS_msgsnd, libc::SYS_msgrcv,
    libc::SYS_msgctl, libc::SYS_mq_open, libc::SYS_mq_unlink, libc::SYS_mq_timedsend,
    libc::SYS_mq_timedreceive, libc::SYS_mq_notify, libc::SYS_mq_getsetattr,
];

/// Newer calls. They have the same number on all processor architectures. The crate `libc` has no names for these calls
/// yet.
pub(super) const LATER: &[libc::c_long] = &[
    451, // cachestat
    452, // fchmodat2
    453, // map_shadow_stack
    454, // futex_wake
    455, // futex_wait
    456, // futex_requeue
    463, // setxattrat
    464, // getxattrat
    465, // listxattrat
    466, // removexattrat
];

/// Calls that exist only on x86-64: older variants of calls, which newer architectures lack.
#[cfg(target_arch = "x86_64")]
#[rustfmt::skip]
pub(super) const HERE: &[libc::c_long] = &[
    libc::SYS_open, libc::SYS_creat, libc::SYS_stat, libc::SYS_lstat, libc::SYS_access, libc::SYS_dup2,
    libc::SYS_pipe, libc::SYS_poll, libc::SYS_select, libc::SYS_pause, libc::SYS_alarm, libc::SYS_fork,
    libc::SYS_vfork, libc::SYS_getdents, libc::SYS_rename, libc::SYS_mkdir, libc::SYS_rmdir, libc::SYS_link,
    libc::SYS_unlink, libc::SYS_symlink, libc::SYS_readlink, libc::SYS_chmod, libc::SYS_chown,
    libc::SYS_lchown, libc::SYS_getpgrp, libc::SYS_utime, libc::SYS_utimes, libc::SYS_futimesat,
    libc::SYS_mknod, libc::SYS_time, libc::SYS_epoll_create, libc::SYS_epoll_wait, libc::SYS_inotify_init,
    libc::SYS_eventfd, libc::SYS_signalfd, libc::SYS_getrlimit, libc::SYS_setrlimit, libc::SYS_renameat,
    libc::SYS_sync_file_range, libc::SYS_arch_prctl, libc::SYS_set_thread_area, libc::SYS_get_thread_area,
];

/// More calls on AArch64, for which the crate `libc` has no names.
#[cfg(target_arch = "aarch64")]
pub(super) const HERE: &[libc::c_long] = &[
    38,  // renameat
    84,  // sync_file_range
    163, // getrlimit
    164, // setrlimit
];

/// Other processor architectures are not supported. The library that builds seccomp filters does not support them
/// either.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub(super) const HERE: &[libc::c_long] = &[];
