//! What this process has in memory, read through a file that was opened before there were rules for files.

use std::fs::File;
use std::os::unix::fs::FileExt;

/// `/proc/self/statm`, where there is one.
#[derive(Debug)]
pub(crate) struct Memory(Option<File>);

impl Memory {
    pub(crate) fn open() -> Self {
        Self(File::open("/proc/self/statm").ok())
    }

    /// Resident bytes: the second field, which counts pages (proc(5)).
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
    fn this_process_has_some() {
        assert!(Memory::open().resident().is_some_and(|bytes| bytes > 4096));
    }
}
