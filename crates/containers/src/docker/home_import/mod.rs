//! Puts an imported home and workspace into the image of a bottle. Only Linux can unpack a hostile archive safely.

#[cfg(target_os = "linux")]
mod linux;
#[cfg(not(target_os = "linux"))]
mod macos;

#[cfg(target_os = "linux")]
pub(super) use self::linux::add_home;
#[cfg(not(target_os = "linux"))]
pub(super) use self::macos::add_home;
