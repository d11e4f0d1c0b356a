// SPDX-License-Identifier: Apache-2.0

// Package sandbox gives up the system calls that an agent never makes, so that whoever
// gets to run code in it cannot make them either.
package sandbox

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// refused are system calls that change the node beyond its network, look into other
// processes, or run other programs. CAP_SYS_ADMIN, which the agent needs for network
// namespaces, allows many of them, and the profiles of container runtimes go by
// capabilities. A list of what is refused, and not of what is allowed, because a call
// that a later Go or kernel makes must not stop an agent on somebody's node.
var refused = append([]uint32{
	// Other programs.
	unix.SYS_EXECVE, unix.SYS_EXECVEAT,
	// The node's file systems.
	unix.SYS_MOUNT, unix.SYS_UMOUNT2, unix.SYS_MOVE_MOUNT, unix.SYS_OPEN_TREE, unix.SYS_MOUNT_SETATTR,
	unix.SYS_FSOPEN, unix.SYS_FSCONFIG, unix.SYS_FSMOUNT, unix.SYS_FSPICK, unix.SYS_PIVOT_ROOT, unix.SYS_CHROOT,
	unix.SYS_SWAPON, unix.SYS_SWAPOFF, unix.SYS_QUOTACTL, unix.SYS_QUOTACTL_FD, unix.SYS_MKNODAT,
	unix.SYS_NAME_TO_HANDLE_AT, unix.SYS_OPEN_BY_HANDLE_AT, unix.SYS_FANOTIFY_INIT,
	// Other processes.
	unix.SYS_PTRACE, unix.SYS_PROCESS_VM_READV, unix.SYS_PROCESS_VM_WRITEV, unix.SYS_PROCESS_MADVISE,
	unix.SYS_KCMP, unix.SYS_PIDFD_GETFD,
	// The kernel and the machine.
	unix.SYS_INIT_MODULE, unix.SYS_FINIT_MODULE, unix.SYS_DELETE_MODULE, unix.SYS_KEXEC_LOAD, unix.SYS_KEXEC_FILE_LOAD,
	unix.SYS_REBOOT, unix.SYS_SYSLOG, unix.SYS_ACCT, unix.SYS_SETHOSTNAME, unix.SYS_SETDOMAINNAME,
	unix.SYS_SETTIMEOFDAY, unix.SYS_CLOCK_SETTIME, unix.SYS_CLOCK_ADJTIME, unix.SYS_ADJTIMEX,
	unix.SYS_KEYCTL, unix.SYS_ADD_KEY, unix.SYS_REQUEST_KEY, unix.SYS_USERFAULTFD, unix.SYS_IO_URING_SETUP, unix.SYS_PERSONALITY,
	// Namespaces of its own; it enters those of pods with setns.
	unix.SYS_UNSHARE,
}, refusedHere...)

// Where struct seccomp_data has the call's number and the architecture whose it is.
const (
	callNumber   = 0
	architecture = 4
)

// Enter refuses these calls (EPERM) from now on, in all threads and for good, and with
// them all calls by another architecture's numbers, such as those of 32-bit programs.
func Enter() error {
	filter := filter()
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("failed to forbid new privileges: %w", err)
	}
	thread, _, failed := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&program)))
	if failed != 0 {
		return fmt.Errorf("failed to give up system calls: %w", failed)
	}
	if thread != 0 {
		return fmt.Errorf("failed to give up system calls: thread %d has a filter of its own", thread)
	}
	return nil
}

// filter is in the language of the classic BPF, in which seccomp takes its filters.
func filter() []unix.SockFilter {
	load := func(offset uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset}
	}
	// Of what is refused there is a jump to the last instruction.
	last := len(refused) + 5
	at := func(compare uint16, value uint32, place int, whenEqual bool) unix.SockFilter {
		instruction := unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_K | compare, K: value}
		if to := uint8(last - place - 1); whenEqual {
			instruction.Jt = to
		} else {
			instruction.Jf = to
		}
		return instruction
	}
	program := []unix.SockFilter{
		load(architecture), at(unix.BPF_JEQ, nativeArchitecture, 1, false),
		load(callNumber), at(unix.BPF_JGE, otherNumbers, 3, true),
	}
	for i, call := range refused {
		program = append(program, at(unix.BPF_JEQ, call, 4+i, true))
	}
	answer := func(action uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: action}
	}
	return append(program, answer(unix.SECCOMP_RET_ALLOW), answer(unix.SECCOMP_RET_ERRNO|uint32(unix.EPERM)))
}
