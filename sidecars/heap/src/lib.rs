//! Returns unused heap memory to the system.
//!
//! A process of a bottle has its highest memory use while the bottle starts, and then idles. glibc's allocator keeps
//! the freed memory for later allocations. With many bottles on a machine, other programs lack this memory.

#![allow(unsafe_code)] // The `SAFETY` comment at the only `unsafe` block gives the reason.

/// Returns the free pages of the heap to the system. The process can allocate these pages again. The call takes less
/// than a millisecond for a heap of a few megabytes. Without glibc, the function does nothing.
pub fn trim() {
    // SAFETY: `malloc_trim` only changes unused memory of the allocator, and may run in several threads
    // (malloc_trim(3)).
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    unsafe {
        nix::libc::malloc_trim(0);
    }
}

#[cfg(all(test, target_os = "linux", target_env = "gnu"))]
mod tests {
    use super::*;

    /// The resident memory in pages: the second field of `/proc/self/statm` (proc(5)).
    fn resident() -> usize {
        let text = std::fs::read_to_string("/proc/self/statm").expect("statm");
        text.split(' ').nth(1).and_then(|pages| pages.parse().ok()).expect("a number")
    }

    #[test]
    fn free_memory_is_returned() {
        // The allocator takes blocks below its `mmap` threshold from the heap. The last block stays allocated, so that
        // the allocator does not return the freed blocks on its own.
        let mut blocks: Vec<Vec<u8>> = (0..1024).map(|_| vec![1; 16 << 10]).collect();
        let last = blocks.pop();
        drop(blocks);
        let before = resident();
        trim();
        let after = resident();
        assert!(after + 2048 < before, "{before} pages before, {after} after");
        drop(last);
    }
}
