//! Limits the disk space that the extraction of an archive may use.

use std::io;
use std::path::Path;

use indicatif::BinaryBytes;
use rustix::fs::statvfs;

/// The number of bytes of the disk that an extraction leaves free. An extraction that would use them fails. On a disk
/// of less than 20 GiB, a twentieth of the disk is left free instead.
const RESERVE: u64 = 1 << 30;

/// The minimum number of bytes that are counted for an entry, because every entry needs a directory entry and an inode.
const ENTRY: u64 = 4096;

/// The number of bytes that may still be written below a directory. The limit is needed because the agent
/// chooses the size of an archive, and because other programs use the same disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskBudget {
    left: u64,
    /// The number of bytes that were free at the start.
    free: u64,
    reserve: u64,
}

impl DiskBudget {
    /// Creates a budget from the free space on the disk that contains this directory, minus the reserve.
    ///
    /// # Errors
    /// Returns an error if `statvfs` fails.
    pub fn for_directory(directory: &Path) -> io::Result<Self> {
        let disk = statvfs(directory)?;
        let bytes = |blocks: u64| blocks.saturating_mul(disk.f_frsize);
        Ok(Self::new(bytes(disk.f_bavail), bytes(disk.f_blocks)))
    }

    fn new(free: u64, total: u64) -> Self {
        let reserve = RESERVE.min(total / 20);
        Self { left: free.saturating_sub(reserve), free, reserve }
    }

    /// Subtracts the size of an entry, in bytes, from the budget.
    ///
    /// # Errors
    /// Returns [`io::ErrorKind::StorageFull`] if the budget is exceeded. The message names the free space.
    pub fn take(&mut self, bytes: u64) -> io::Result<()> {
        match self.left.checked_sub(bytes.max(ENTRY)) {
            Some(left) => {
                self.left = left;
                Ok(())
            }
            None => Err(TooLittleSpace { free: self.free, reserve: self.reserve }.into()),
        }
    }
}

/// The error for an archive or image that needs more space than the disk has free beyond the reserve.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it takes more than is free there: {}, of which {} stay free", BinaryBytes(*.free), BinaryBytes(*.reserve))]
pub struct TooLittleSpace {
    /// The number of bytes that were free on the disk.
    free: u64,
    /// The number of bytes that must stay free on the disk.
    reserve: u64,
}

impl From<TooLittleSpace> for io::Error {
    fn from(missing: TooLittleSpace) -> Self {
        Self::new(io::ErrorKind::StorageFull, missing)
    }
}

/// Returns the message that a disk is full, with the amount of free space if that is known.
#[cfg(target_os = "linux")]
#[must_use]
pub fn full(error: &io::Error) -> String {
    match error.get_ref().and_then(|cause| cause.downcast_ref::<TooLittleSpace>()) {
        Some(missing) => format!("the disk is full: {missing}"),
        None => "the disk is full".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_os = "linux")]
    #[test]
    fn a_full_disk_names_the_space_if_it_is_known() {
        assert_eq!(full(&rustix::io::Errno::NOSPC.into()), "the disk is full");
        let missing = TooLittleSpace { free: 3 << 30, reserve: 1 << 30 };
        assert_eq!(
            full(&missing.into()),
            "the disk is full: it takes more than is free there: 3.00 GiB, of which 1.00 GiB stay free"
        );
    }

    #[test]
    fn the_budget_is_the_free_space_less_a_reserve() {
        for (free, total, budget) in [
            (100 << 30, 200 << 30, 99 << 30),
            (1 << 30, 200 << 30, 0),
            (10 << 20, 100 << 20, 5 << 20),
            (0, 0, 0),
        ] {
            let mut disk = DiskBudget::new(free, total);
            assert_eq!(disk.left, budget, "{free} {total}");
            if budget > 0 {
                disk.take(budget - ENTRY).expect("there is room");
                disk.take(0).expect("there is room");
            }
            let error = disk.take(0).expect_err("nothing is left");
            assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        }
        let error = DiskBudget::new(3 << 30, 100 << 30).take(1 << 40).expect_err("too much");
        assert_eq!(
            error.to_string(),
            "it takes more than is free there: 3.00 GiB, of which 1.00 GiB stay free"
        );
    }
}
