//! The resource limits that an engine enforces. A rootless engine on cgroup v1 ignores all resource limits. The module
//! has no side effects.

use bollard::models::SystemInfo;
use bottle_backend::{BackendError, memory};
use bottle_plan::Resources;

/// Which resource limits the engine enforces, and how much memory its machine has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Enforced {
    memory: bool,
    processors: bool,
    processes: bool,
    /// The memory of the engine's machine, in bytes, if the engine reports it. The machine can be a virtual machine.
    machine_memory: Option<u64>,
}

impl Enforced {
    /// Reads the limits from the engine's information. If the engine reports nothing about a limit, assumes that it
    /// enforces the limit.
    pub(super) fn of(info: &SystemInfo) -> Self {
        Self {
            memory: info.memory_limit != Some(false),
            processors: info.cpu_cfs_quota != Some(false),
            processes: info.pids_limit != Some(false),
            machine_memory: info
                .mem_total
                .and_then(|bytes| u64::try_from(bytes).ok())
                .filter(|bytes| *bytes > 0),
        }
    }

    /// Returns a description of each default limit that this engine ignores. Each description is one sentence.
    ///
    /// # Errors
    /// [`BackendError`] when the manifest sets a limit that this engine ignores.
    pub(super) fn check(&self, asked: &Resources) -> Result<Vec<String>, BackendError> {
        let limits = [
            (self.memory, asked.memory.is_some(), "memory", "limit a bottle's memory"),
            (self.processors, asked.cpus.is_some(), "cpus", "limit a bottle's processors"),
            (self.processes, asked.pids.is_some(), "pids", "limit a bottle's processes"),
        ];
        if let Some((.., key, _)) = limits.iter().find(|(enforced, set, ..)| *set && !enforced) {
            let message = format!("the engine ignores `resources.{key}`");
            return Err(BackendError::unsupported(
                message,
                format!(
                    "use an engine with cgroup v2, or take `{key}` out of the manifest, or use another backend"
                ),
            ));
        }
        // There is no default processor limit.
        let ignored = limits.iter().filter(|(enforced, _, key, _)| !enforced && *key != "cpus");
        Ok(ignored.map(|(.., what)| format!("this engine cannot {what}")).collect())
    }

    /// Returns the memory limit in bytes: the requested limit, or three quarters of the machine's memory. `None` if the
    /// engine enforces no memory limit.
    pub(super) fn memory(&self, asked: Option<u64>) -> Option<i64> {
        let default = || self.machine_memory.map_or_else(memory::default_max, |bytes| bytes / 4 * 3);
        self.memory.then(|| asked.unwrap_or_else(default)).and_then(|bytes| i64::try_from(bytes).ok())
    }

    /// Returns the processor limit in billionths of a processor. `asked` is in thousandths.
    pub(super) fn processors(&self, asked: Option<u32>) -> Option<i64> {
        asked.filter(|_| self.processors).map(|thousandths| i64::from(thousandths) * 1_000_000)
    }

    /// Returns the maximum number of processes: the requested maximum, or the default of all backends.
    pub(super) fn processes(&self, asked: Option<u64>) -> Option<i64> {
        let asked = asked.unwrap_or(memory::PROCESSES);
        self.processes.then(|| i64::try_from(asked).ok()).flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rootless() -> SystemInfo {
        SystemInfo {
            memory_limit: Some(false),
            cpu_cfs_quota: Some(false),
            pids_limit: Some(false),
            mem_total: Some(8 << 30),
            ..SystemInfo::default()
        }
    }

    #[test]
    fn an_ignored_limit_is_refused_if_the_manifest_sets_it_and_noted_otherwise() {
        let (all, none) = (Enforced::of(&SystemInfo::default()), Enforced::of(&rootless()));
        let asked =
            Resources { memory: Some(1 << 30), cpus: Some(1500), pids: Some(7), ..Resources::default() };
        assert_eq!(all.check(&asked).expect("enforced"), [""; 0]);
        assert_eq!(all.check(&Resources::default()).expect("enforced"), [""; 0]);
        let noted = none.check(&Resources::default()).expect("only defaults");
        assert_eq!(
            noted,
            ["this engine cannot limit a bottle's memory", "this engine cannot limit a bottle's processes"]
        );
        for (asked, key) in [
            (Resources { memory: asked.memory, ..Resources::default() }, "`resources.memory`"),
            (Resources { cpus: asked.cpus, ..Resources::default() }, "`resources.cpus`"),
            (Resources { pids: asked.pids, ..Resources::default() }, "`resources.pids`"),
            (Resources { pids: Some(memory::PROCESSES), ..Resources::default() }, "`resources.pids`"),
        ] {
            let error = none.check(&asked).expect_err(key);
            assert!(error.message.contains(key) && error.hint.is_some(), "{error:?}");
        }
    }

    #[test]
    fn only_enforced_limits_are_requested() {
        let engine = |enforced| Enforced::of(&SystemInfo { memory_limit: Some(enforced), ..rootless() });
        assert_eq!(engine(true).memory(None), Some(6 << 30), "three quarters of the engine's machine");
        assert_eq!(engine(true).memory(Some(1 << 30)), Some(1 << 30));
        let none = engine(false);
        assert_eq!(
            (none.memory(Some(1)), none.processors(Some(1)), none.processes(Some(1))),
            (None, None, None)
        );
        let all = Enforced::of(&SystemInfo::default());
        assert_eq!((all.processors(Some(1500)), all.processes(Some(7))), (Some(1_500_000_000), Some(7)));
        assert_eq!(all.processes(None), Some(4096));
        assert!(all.memory(None).is_some_and(|bytes| bytes > 0));
    }
}
