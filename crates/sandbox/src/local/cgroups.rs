//! Creates control groups, whose limits the kernel enforces.
//!
//! ```text
//!   version 1   <mount>/memory/<own>/bottle-<home>-<slug>     one tree for each controller
//!   version 2   <mount>/<parent of own>/bottle-<home>-<slug>  one tree; a sibling of this process's group, because a
//!                                                             group with processes cannot delegate controllers
//! ```
//! Root can create groups. An ordinary user can create groups if systemd delegated the tree. When a bottle ends, its
//! groups are removed after its processes.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bottle_backend::BackendError;
use bottle_plan::Resources;
use bottle_protocol::session::guest::{Limited, Overrun};
use rustix::fs::Access;

use super::failure::Step;
use crate::local::spawn_ipc::SetupFailure;

/// The [`bottle_backend::Resource::kind`] of a control group.
pub(crate) const GROUP: &str = "control-group";

/// The hint that explains how an ordinary user gets a delegated control group.
pub(crate) const FIX: &str = "`systemd-run --user --scope -p Delegate=yes bottle start …` gives an ordinary user control \
    groups; or start it as root, or use another backend";

/// The mount point of the control group file system.
const MOUNT: &str = "/sys/fs/cgroup";

/// The period of processor quotas, in microseconds.
const PERIOD: u64 = 100_000;

/// How long the removal of a group waits until the group is empty after its processes were killed. After this time, the
/// removal fails.
const EMPTY_WITHIN: Duration = Duration::from_secs(5);

/// A cgroup controller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Controller {
    /// The controller that limits memory.
    Memory,
    /// The controller that limits processor time.
    Cpu,
}

impl Controller {
    const ALL: [Self; 2] = [Self::Memory, Self::Cpu];

    fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Cpu => "cpu",
        }
    }
}

/// The existing groups below which this process can create groups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Groups {
    version: Version,
    /// For each available controller, the group below which new groups are created.
    parents: Vec<(Controller, PathBuf)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// The control groups of one bottle.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct CreatedGroups(Vec<(Controller, PathBuf)>);

impl Groups {
    /// Finds the groups below which this process can create groups.
    pub(crate) fn current() -> Self {
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let may = |path: &Path| rustix::fs::access(path, Access::WRITE_OK | Access::EXEC_OK).is_ok();
        Self::from_cgroup_file(Path::new(MOUNT), &own, may)
    }

    /// Finds the parent groups below `mount` for one process. `own` is the content of the process's
    /// `/proc/self/cgroup`.
    fn from_cgroup_file(mount: &Path, own: &str, may: impl Fn(&Path) -> bool) -> Self {
        let version = if mount.join("cgroup.controllers").exists() { Version::Two } else { Version::One };
        let parent = |controller: Controller| {
            let parent = match version {
                Version::One => {
                    let own = own_path(own, |kinds| kinds.split(',').any(|kind| kind == controller.name()))?;
                    mount.join(controller.name()).join(own)
                }
                Version::Two => {
                    let own = Path::new(own_path(own, str::is_empty)?);
                    let parent = mount.join(own.parent().unwrap_or(own));
                    let passed = fs::read_to_string(parent.join("cgroup.subtree_control")).ok()?;
                    passed.split_ascii_whitespace().any(|kind| kind == controller.name()).then_some(parent)?
                }
            };
            may(&parent).then_some((controller, parent))
        };
        Self { version, parents: Controller::ALL.into_iter().filter_map(parent).collect() }
    }

    /// Whether this process can create groups that use this controller.
    pub(crate) fn can_limit(&self, controller: Controller) -> bool {
        self.parents.iter().any(|(kind, _)| *kind == controller)
    }

    /// Creates the groups for the requested limits. Limits of unavailable controllers are skipped. Records each group
    /// before creating it.
    ///
    /// # Errors
    /// [`BackendError`] when a group cannot be created or its limit cannot be set.
    pub(crate) fn make(
        &self,
        name: &str,
        asked: &Resources,
        record: impl Fn(&Path) -> Result<(), BackendError>,
    ) -> Result<CreatedGroups, BackendError> {
        let mut created = CreatedGroups::default();
        for (controller, parent) in &self.parents {
            let settings = self.settings(*controller, asked);
            if settings.is_empty() {
                continue;
            }
            let directory = parent.join(name);
            if !created.0.iter().any(|(_, known)| *known == directory) {
                record(&directory)?;
                // If a launch that crashed left the directory behind, this launch reuses the directory.
                fs::create_dir_all(&directory).map_err(|error| failed("make", &directory, error))?;
            }
            for (file, value, needed) in settings {
                let path = directory.join(file);
                match fs::write(&path, value) {
                    Err(error) if needed => return Err(failed("limit", &path, error)),
                    _ => {}
                }
            }
            created.0.push((*controller, directory));
        }
        Ok(created)
    }

    /// Returns the files to write for a limit: name, value, and whether a failed write is an error. The files for swap
    /// may be missing, because some kernels do not account for swap.
    fn settings(&self, controller: Controller, asked: &Resources) -> Vec<(&'static str, String, bool)> {
        let quota = |cpus: u32| u64::from(cpus) * PERIOD / 1000;
        match (self.version, controller) {
            (_, Controller::Memory) if asked.memory.is_none() => Vec::new(),
            (_, Controller::Cpu) if asked.cpus.is_none() => Vec::new(),
            (Version::One, Controller::Memory) => {
                let bytes = asked.memory.unwrap_or_default().to_string();
                let with_swap = ("memory.memsw.limit_in_bytes", bytes.clone(), false);
                vec![("memory.limit_in_bytes", bytes, true), with_swap]
            }
            (Version::Two, Controller::Memory) => vec![
                ("memory.max", asked.memory.unwrap_or_default().to_string(), true),
                ("memory.swap.max", "0".to_owned(), false),
            ],
            (Version::One, Controller::Cpu) => vec![
                ("cpu.cfs_period_us", PERIOD.to_string(), true),
                ("cpu.cfs_quota_us", quota(asked.cpus.unwrap_or_default()).to_string(), true),
            ],
            (Version::Two, Controller::Cpu) => {
                vec![("cpu.max", format!("{} {PERIOD}", quota(asked.cpus.unwrap_or_default())), true)]
            }
        }
    }

    /// Returns the memory limit of this bottle's group if the kernel killed processes because they exceeded it.
    pub(crate) fn overrun(&self, name: &str) -> Option<Overrun> {
        let (_, parent) = self.parents.iter().find(|(kind, _)| *kind == Controller::Memory)?;
        let directory = parent.join(name);
        let (limit, events) = match self.version {
            Version::One => ("memory.limit_in_bytes", "memory.oom_control"),
            Version::Two => ("memory.max", "memory.events"),
        };
        let events = fs::read_to_string(directory.join(events)).ok()?;
        let killed = events.lines().find_map(|line| line.strip_prefix("oom_kill ")?.parse::<u64>().ok())?;
        let limit = fs::read_to_string(directory.join(limit)).ok()?.trim().parse().ok()?;
        (killed > 0).then_some(Overrun { resource: Limited::Memory, limit, asked: true })
    }

    /// Lists the names and paths of all groups that have a name with this prefix.
    pub(crate) fn find(&self, prefix: &str) -> Vec<(String, PathBuf)> {
        let mut found: Vec<(String, PathBuf)> = Vec::new();
        for (_, parent) in &self.parents {
            for entry in fs::read_dir(parent).into_iter().flatten().filter_map(Result::ok) {
                let name = entry.file_name().to_string_lossy().into_owned();
                let path = entry.path();
                if name.starts_with(prefix) && path.is_dir() && !found.iter().any(|(_, known)| *known == path)
                {
                    found.push((name, path));
                }
            }
        }
        found
    }
}

impl CreatedGroups {
    /// Whether this controller limits the bottle.
    pub(crate) fn limits(&self, controller: Controller) -> bool {
        self.0.iter().any(|(kind, _)| *kind == controller)
    }

    /// The `cgroup.procs` files of the groups. A process writes to these files to join the groups.
    pub(crate) fn procs_files(&self) -> Vec<PathBuf> {
        let mut files: Vec<PathBuf> =
            self.0.iter().map(|(_, directory)| directory.join("cgroup.procs")).collect();
        files.dedup();
        files
    }
}

/// Moves this process into the groups. Later children of this process start in the same groups.
///
/// # Errors
/// [`SetupFailure`] that names the group.
pub(crate) fn join(groups: &[PathBuf]) -> Result<(), SetupFailure> {
    for group in groups {
        // The kernel interprets the number 0 as the process that writes it.
        fs::write(group, "0").step_at("join", group)?;
    }
    Ok(())
}

/// Whether a path from a resource log is a control group with this name.
pub(crate) fn is_own_group(path: &Path, name: &str) -> bool {
    path.starts_with(MOUNT) && path.file_name().is_some_and(|last| last == name) && !has_dots(path)
}

fn has_dots(path: &Path) -> bool {
    path.components().any(|part| part == std::path::Component::ParentDir)
}

/// Removes a group whose processes were killed. A missing group is no error.
///
/// # Errors
/// When the group still contains processes.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    let begun = Instant::now();
    loop {
        match fs::remove_dir(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            // A killed process leaves its group shortly after its exit becomes visible.
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy && begun.elapsed() < EMPTY_WITHIN => {
                std::thread::sleep(Duration::from_millis(5));
            }
            removed => return removed,
        }
    }
}

fn failed(verb: &str, path: &Path, error: io::Error) -> BackendError {
    BackendError::failed(format!("cannot {verb} {}", path.display())).because(error)
}

/// Finds a process's group in the hierarchy with these controllers, as described in cgroups(7). Returns the path of the
/// group without the leading slash.
fn own_path(own: &str, kinds: impl Fn(&str) -> bool) -> Option<&str> {
    own.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (found, path) = (fields.next()?, fields.next()?);
        kinds(found).then(|| path.trim_start_matches('/'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked() -> Resources {
        Resources { memory: Some(1 << 29), cpus: Some(1500), ..Resources::default() }
    }

    fn created(groups: &Groups, asked: &Resources) -> CreatedGroups {
        groups.make("bottle-0-a", asked, |_| Ok(())).expect("made")
    }

    #[test]
    fn version_1_has_a_tree_for_each_controller() {
        let mount = tempfile::tempdir().expect("directory");
        let own = "3:cpu,cpuacct:/\n2:memory:/user/a\n1:name=systemd:/x\n0::/x\n";
        for directory in ["memory/user/a", "cpu"] {
            fs::create_dir_all(mount.path().join(directory)).expect("made");
        }
        let groups = Groups::from_cgroup_file(mount.path(), own, Path::is_dir);
        let created = created(&groups, &asked());
        assert!(created.limits(Controller::Memory) && created.limits(Controller::Cpu));
        let read = |path: &str| fs::read_to_string(mount.path().join(path)).expect("written");
        assert_eq!(read("memory/user/a/bottle-0-a/memory.limit_in_bytes"), "536870912");
        assert_eq!(read("cpu/bottle-0-a/cpu.cfs_quota_us"), "150000");
        assert_eq!(created.procs_files().len(), 2);
        assert_eq!(groups.find("bottle-0-").len(), 2);
        assert_eq!(groups.overrun("bottle-0-a"), None);
        let events = mount.path().join("memory/user/a/bottle-0-a/memory.oom_control");
        fs::write(events, "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n").expect("written");
        assert_eq!(groups.overrun("bottle-0-a").expect("killed").limit, 1 << 29);
        let none = Groups::from_cgroup_file(mount.path(), own, |_| false);
        assert!(!none.can_limit(Controller::Memory) && !none.can_limit(Controller::Cpu));
    }

    #[test]
    fn version_2_creates_a_sibling_group_with_the_delegated_controllers() {
        let mount = tempfile::tempdir().expect("directory");
        let own = "0::/user.slice/app.slice/run-1.scope\n";
        let parent = mount.path().join("user.slice/app.slice");
        fs::create_dir_all(parent.join("run-1.scope")).expect("made");
        fs::write(mount.path().join("cgroup.controllers"), "cpu memory pids\n").expect("written");
        fs::write(parent.join("cgroup.subtree_control"), "memory pids\n").expect("written");
        let groups = Groups::from_cgroup_file(mount.path(), own, Path::is_dir);
        assert!(groups.can_limit(Controller::Memory) && !groups.can_limit(Controller::Cpu));
        let one = created(&groups, &asked());
        assert!(!one.limits(Controller::Cpu));
        assert_eq!(one.procs_files(), [parent.join("bottle-0-a/cgroup.procs")]);
        fs::write(parent.join("cgroup.subtree_control"), "cpu memory pids\n").expect("written");
        let groups = Groups::from_cgroup_file(mount.path(), own, Path::is_dir);
        let both = created(&groups, &asked());
        assert_eq!(both.procs_files(), [parent.join("bottle-0-a/cgroup.procs")]);
        assert_eq!(fs::read_to_string(parent.join("bottle-0-a/cpu.max")).expect("written"), "150000 100000");
        assert_eq!(created(&groups, &Resources::default()), CreatedGroups::default());
        fs::write(parent.join("bottle-0-a/memory.events"), "low 0\noom 1\noom_kill 0\n").expect("written");
        assert_eq!(groups.overrun("bottle-0-a"), None);
        // The root group has no siblings, so new groups are created below the root group.
        fs::write(mount.path().join("cgroup.subtree_control"), "memory\n").expect("written");
        assert!(Groups::from_cgroup_file(mount.path(), "0::/\n", Path::is_dir).can_limit(Controller::Memory));
    }

    #[test]
    fn recognizes_only_a_group_of_the_bottles_name() {
        for (path, is) in [
            ("/sys/fs/cgroup/memory/bottle-0-a", true),
            ("/sys/fs/cgroup/memory/bottle-0-b", false),
            ("/sys/fs/cgroup/../../../home/bottle-0-a", false),
            ("/home/bottle-0-a", false),
        ] {
            assert_eq!(is_own_group(Path::new(path), "bottle-0-a"), is, "{path}");
        }
    }
}
