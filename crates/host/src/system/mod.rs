//! Reads the accounts and the memory of the machine, for which each operating system has another interface.

#[cfg(target_os = "linux")]
mod linux;
#[cfg(target_os = "macos")]
mod macos;

#[cfg(target_os = "linux")]
pub use linux::{account, memory_total};
#[cfg(target_os = "macos")]
pub use macos::{account, memory_total};

#[cfg(test)]
mod tests {
    #[test]
    fn reports_the_machines_memory() {
        assert!(super::memory_total() > 64 << 20, "{}", super::memory_total());
    }
}
