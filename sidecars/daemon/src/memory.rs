//! Reports the memory use of this process. The numbers come from `/proc/self/statm`. This file is opened before the
//! process restricts its file access.

use std::fs::File;
use std::os::unix::fs::FileExt;

/// The open file `/proc/self/statm`. `None` if the file could not be opened.
#[derive(Debug)]
pub(crate) struct Memory(Option<File>);

impl Memory {
    pub(crate) fn open() -> Self {
        Self(File::open("/proc/self/statm").ok())
    }

    /// Returns the resident memory in bytes. The second field of the file is the number of resident pages (proc(5)).
    pub(crate) fn resident(&self) -> Option<u64> {
        let mut text = [0; 128];
        let read = self.0.as_ref()?.read_at(&mut text, 0).ok()?;
        let text = std::str::from_utf8(text.get(..read)?).ok()?;
        let pages: u64 = text.split_whitespace().nth(1)?.parse().ok()?;
        Some(pages * rustix::param::page_size() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_resident_memory() {
        assert!(Memory::open().resident().is_some_and(|bytes| bytes > 4096));
    }
}
