//! Limits the resources of a child process, before it executes its program.
#![allow(unsafe_code)] // Only `pre_exec` can run code between fork and exec, and it is an unsafe function.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Upper bounds for the resources of one process. Each child process inherits the bounds, and its resources are counted
/// separately. If the process has already inherited a lower limit, the lower limit remains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChildLimits {
    /// The memory that the process may write to, in bytes (`RLIMIT_DATA`): heap, stacks and private mappings, but not
    /// files that are mapped to be read. An allocation that exceeds the limit fails.
    pub memory: u64,
    /// The address space in bytes (`RLIMIT_AS`), which also contains mapped files.
    pub address_space: u64,
    /// The size of each file that the process writes, in bytes. The kernel kills the process if a file exceeds this
    /// size.
    pub file: u64,
    /// The processor time in seconds. The kernel kills the process if it uses more time.
    pub cpu_seconds: u64,
}

impl ChildLimits {
    /// Makes `command` apply these limits to the process that it spawns, before the program is executed. The process
    /// also writes no core file. If the kernel refuses a limit, the spawn fails and the program is not executed.
    pub fn apply_to(self, command: &mut Command) {
        let in_child = move || -> io::Result<()> {
            for (resource, most) in [
                (Resource::RLIMIT_DATA, self.memory),
                (Resource::RLIMIT_AS, self.address_space),
                (Resource::RLIMIT_FSIZE, self.file),
                (Resource::RLIMIT_CPU, self.cpu_seconds),
                (Resource::RLIMIT_CORE, 0),
            ] {
                let (_, inherited) = getrlimit(resource)?;
                let most = most.min(inherited);
                setrlimit(resource, most, most)?;
            }
            Ok(())
        };
        // SAFETY: between fork and exec only async-signal-safe calls are allowed. The closure makes two system calls
        // for each limit. The closure allocates no memory, takes no lock, and accesses only the numbers that it owns.
        unsafe {
            command.pre_exec(in_child);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: ChildLimits =
        ChildLimits { memory: 64 << 20, address_space: 1 << 30, file: 4096, cpu_seconds: 60 };

    /// Runs a shell script with `limits`.
    fn run(limits: ChildLimits, script: &str) -> std::process::Output {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        limits.apply_to(&mut command);
        command.output().expect("sh runs")
    }

    #[test]
    fn a_child_has_its_limits_before_its_program_starts() {
        let output = run(LIMITS, "cat /proc/self/limits");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        for (name, value) in [
            ("Max data size", 64 << 20),
            ("Max address space", 1 << 30),
            ("Max file size", 4096),
            ("Max cpu time", 60),
            ("Max core file size", 0),
        ] {
            let line = text.lines().find(|line| line.starts_with(name)).expect(name);
            let both = format!(" {value} {value} ");
            let words = line.split_ascii_whitespace().collect::<Vec<_>>().join(" ");
            assert!(words.contains(&both), "{words}");
        }
    }

    #[test]
    fn a_child_cannot_allocate_or_write_more() {
        // The shell doubles a string until the string has 512 MiB.
        let doubling = "x=0123456789abcdef; i=0; while [ $i -lt 25 ]; do x=$x$x; i=$((i+1)); done; echo all";
        let output = run(LIMITS, doubling);
        assert!(!output.status.success() && output.stdout.is_empty(), "{output:?}");
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("f");
        let output = run(LIMITS, &format!("head -c 10000 /dev/zero > {}", file.display()));
        assert!(!output.status.success());
        assert_eq!(std::fs::metadata(&file).expect("a file").len(), 4096);
    }
}
