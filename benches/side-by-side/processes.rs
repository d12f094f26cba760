//! The processes of a home and what they hold in memory, read from /proc.

use std::fs;

/// One process.
#[derive(Debug, Clone)]
pub(crate) struct Process {
    /// `__keeper`, `__bundle`, `__egress`, `__guest`.
    pub(crate) role: String,
    /// Bytes resident.
    pub(crate) resident: u64,
    /// Of those, bytes that other processes may share: the program itself.
    pub(crate) shared: u64,
}

/// Every process of the program whose label names this home: `bottle __ROLE HOME SLUG`.
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
    Some(Process { role, resident: pages.next()? * page, shared: pages.next()? * page })
}

/// Bytes as MiB.
pub(crate) fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}
