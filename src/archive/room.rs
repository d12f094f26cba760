//! How much of a disk an archive may take.

use std::io;
use std::path::Path;

use indicatif::BinaryBytes;
use rustix::fs::statvfs;

/// What always stays free, in bytes; of a small disk a twentieth.
const RESERVE: u64 = 1 << 30;

/// What an entry takes at least, in bytes: its place in a folder, and what is known of it.
const ENTRY: u64 = 4096;

/// What may still be written below a folder. What an archive holds is the agent's to choose, and other programs live on
/// the same disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Room {
    left: u64,
    /// At the beginning.
    free: u64,
    reserve: u64,
}

impl Room {
    /// What is free on the disk of this folder, less the reserve.
    ///
    /// # Errors
    /// When the disk does not say.
    pub(crate) fn below(folder: &Path) -> io::Result<Self> {
        let disk = statvfs(folder)?;
        let bytes = |blocks: u64| blocks.saturating_mul(disk.f_frsize);
        Ok(Self::of(bytes(disk.f_bavail), bytes(disk.f_blocks)))
    }

    fn of(free: u64, whole: u64) -> Self {
        let reserve = RESERVE.min(whole / 20);
        Self { left: free.saturating_sub(reserve), free, reserve }
    }

    /// Takes the room of an entry with so many bytes.
    ///
    /// # Errors
    /// [`io::ErrorKind::StorageFull`] when there is not so much; it names how much there was.
    pub(crate) fn take(&mut self, bytes: u64) -> io::Result<()> {
        match self.left.checked_sub(bytes.max(ENTRY)) {
            Some(left) => {
                self.left = left;
                Ok(())
            }
            None => Err(io::Error::new(
                io::ErrorKind::StorageFull,
                format!(
                    "it takes more than is free there: {}, of which {} stay free",
                    BinaryBytes(self.free),
                    BinaryBytes(self.reserve)
                ),
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_free_less_a_reserve_is_all_that_is_taken() {
        for (free, whole, room) in [
            (100 << 30, 200 << 30, 99 << 30),
            (1 << 30, 200 << 30, 0),
            (10 << 20, 100 << 20, 5 << 20),
            (0, 0, 0),
        ] {
            let mut disk = Room::of(free, whole);
            assert_eq!(disk.left, room, "{free} {whole}");
            if room > 0 {
                disk.take(room - ENTRY).expect("there is room");
                disk.take(0).expect("there is room");
            }
            let error = disk.take(0).expect_err("nothing is left");
            assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        }
        let error = Room::of(3 << 30, 100 << 30).take(1 << 40).expect_err("too much");
        assert_eq!(
            error.to_string(),
            "it takes more than is free there: 3.00 GiB, of which 1.00 GiB stay free"
        );
    }
}
