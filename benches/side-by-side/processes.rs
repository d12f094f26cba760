//! Reads from `/proc` which processes belong to a `$BOTTLE_HOME`, and how much memory each uses.

use std::fs;

/// A process and its memory.
#[derive(Debug, Clone)]
pub(crate) struct Process {
    /// The role of the process, for example `__keeper`, `__bundle`, `__egress` or `__guest`.
    pub(crate) role: String,
    /// The resident memory, in bytes.
    pub(crate) resident: u64,
    /// The part of the resident memory, in bytes, that the process can share with other processes, such as the
    /// program's code.
    pub(crate) shared: u64,
    /// The proportional set size in bytes: each shared page is divided by the number of processes that map it. The sum
    /// over all processes therefore counts each page once. `None` if the kernel does not report this size.
    pub(crate) proportional: Option<u64>,
}

/// Returns all processes of `bottle` whose command line names this home: `bottle __ROLE HOME SLUG`.
pub(crate) fn of_home(home: &str) -> Vec<Process> {
    let pids = fs::read_dir("/proc").into_iter().flatten().flatten();
    pids.filter_map(|entry| read(&entry.file_name().to_string_lossy(), home)).collect()
}

fn read(pid: &str, home: &str) -> Option<Process> {
    pid.parse::<u32>().ok()?;
    let arguments = fs::read_to_string(format!("/proc/{pid}/cmdline")).ok()?;
    let mut arguments = arguments.split('\0').skip(1);
    let role = arguments.next().filter(|role| role.starts_with("__"))?.to_owned();
    if arguments.next() != Some(home) {
        return None;
    }
    let memory = fs::read_to_string(format!("/proc/{pid}/statm")).ok()?;
    let mut pages = memory.split(' ').skip(1).map_while(|pages| pages.parse::<u64>().ok());
    let page = rustix::param::page_size() as u64;
    let (resident, shared) = (pages.next()? * page, pages.next()? * page);
    Some(Process { role, resident, shared, proportional: proportional(pid) })
}

fn proportional(pid: &str) -> Option<u64> {
    let sums = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let line = sums.lines().find_map(|line| line.strip_prefix("Pss:"))?;
    Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? << 10)
}

/// Converts bytes to MiB.
pub(crate) fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}
