//! Chooses the host user ids under which the agent and the sidecars of a bottle run. The agent and the sidecars never
//! run as root.
//!
//! Inside the bottle, a single user id exists: [`bottle_policy::names::AGENT_UID`] or the id of the image's user. If an
//! ordinary user starts the bottle, this inner id maps to the user's own id, because an ordinary user may map no other
//! id.
//!
//! If root starts the bottle, the inner id maps to a host id in the range 0x7000_0000 to 0x7fff_ffff, which systemd's
//! id plan leaves unused. A hash of home and slug selects the host id. The owner of a kept bottle's files therefore
//! stays the same, and two bottles run as different users. No file of the host belongs to the selected id, so the agent
//! cannot read files that only root may read, and set-id programs grant nothing.
//!
//! The sidecars have credentials and process the agent's traffic. If root starts the bottle, the sidecars run under a
//! second host id, which is selected in the same way from its own range. If an ordinary user starts the bottle, the
//! sidecars run as that user, confined by [`bottle_harden`].

use std::fs;
use std::io;

use bottle_policy::names::Slug;
use sha2::{Digest, Sha256};

use super::spec::AgentIds;
use crate::local::backend::Who;

/// The number of ids in the range for agents, and in the range for sidecars. All ids fit into a signed 32-bit number.
const COUNT: u32 = 1 << 24;

impl Who {
    /// The first id of the range for these processes.
    fn first(self) -> u32 {
        match self {
            Self::Agent => 0x7000_0000,
            Self::Sidecars => 0x7100_0000,
        }
    }
}

/// Returns the host user id for the agent or the sidecars of a bottle that root starts. Returns `None` if an ordinary
/// user starts the bottle.
///
/// # Errors
/// When every id of the range is taken, or this process is root in a container whose id map lacks the chosen id.
pub(super) fn outside_id(home_hash: &str, slug: &Slug, who: Who) -> io::Result<Option<u32>> {
    if !rustix::process::geteuid().is_root() {
        return Ok(None);
    }
    let taken = Taken::read();
    let digest = Sha256::digest(format!("{home_hash}/{slug}"));
    let hash = u32::from_be_bytes([0, digest[0], digest[1], digest[2]]);
    let id = (0..COUNT).map(|step| who.first() + (hash + step) % COUNT).find(|id| !taken.contains(*id));
    let id = id.ok_or_else(|| io::Error::other("every id of the range is taken"))?;
    for map in ["/proc/self/uid_map", "/proc/self/gid_map"] {
        if !maps(&fs::read_to_string(map)?, id) {
            return Err(io::Error::other(format!(
                "user id {id} does not exist in this container ({map}); start bottle as an ordinary user"
            )));
        }
    }
    Ok(Some(id))
}

/// As root, maps the single id of the user namespace of process `pid`.
///
/// # Errors
/// When the kernel refuses the mapping.
pub(super) fn map_from_outside(pid: u32, outside_id: u32, inside: AgentIds) -> io::Result<()> {
    fs::write(format!("/proc/{pid}/gid_map"), format!("{} {outside_id} 1", inside.gid))?;
    fs::write(format!("/proc/{pid}/uid_map"), format!("{} {outside_id} 1", inside.uid))
}

/// As an ordinary user, maps the single id of this process's new user namespace.
///
/// # Errors
/// When the kernel refuses the mapping.
pub(super) fn map_self(uid: u32, gid: u32, inside: AgentIds) -> io::Result<()> {
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/gid_map", format!("{} {gid} 1", inside.gid))?;
    fs::write("/proc/self/uid_map", format!("{} {uid} 1", inside.uid))
}

/// The id ranges that the machine's account files assign.
struct Taken(Vec<(u32, u32)>);

impl Taken {
    fn read() -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let mut ranges = Vec::new();
        for file in ["/etc/passwd", "/etc/group"] {
            ranges.extend(
                read(file).lines().filter_map(|line| Some((line.split(':').nth(2)?.parse().ok()?, 1))),
            );
        }
        for file in ["/etc/subuid", "/etc/subgid"] {
            ranges.extend(read(file).lines().filter_map(|line| {
                let mut fields = line.split(':').skip(1);
                Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
            }));
        }
        Self(ranges)
    }

    fn contains(&self, id: u32) -> bool {
        self.0.iter().any(|(first, count)| id >= *first && id - first < *count)
    }
}

/// Whether `map`, the content of a `uid_map` or `gid_map` file, maps `id` of the inner namespace.
fn maps(map: &str, id: u32) -> bool {
    map.lines().any(|line| {
        let mut fields = line.split_ascii_whitespace().map(str::parse::<u32>);
        match (fields.next(), fields.next(), fields.next()) {
            (Some(Ok(inside)), Some(Ok(_)), Some(Ok(count))) => id >= inside && id - inside < count,
            _ => false,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_up_ids_in_maps_and_ranges() {
        let whole = "         0          0 4294967295\n";
        let rootless = "0 1000 1\n1 100000 65536\n";
        let first = Who::Agent.first();
        assert!(maps(whole, first) && maps(whole, Who::Sidecars.first() + COUNT - 1));
        assert!(!maps(rootless, first) && maps(rootless, 65_536) && !maps("", 0));
        let taken = Taken(vec![(first, 2), (1000, 1)]);
        assert!(taken.contains(first + 1) && !taken.contains(first + 2) && taken.contains(1000));
    }

    #[test]
    fn the_outside_id_is_never_roots() {
        let slug: Slug = "a-1".parse().expect("slug");
        for who in [Who::Agent, Who::Sidecars] {
            match outside_id("01234567", &slug, who) {
                Ok(Some(id)) => assert!((who.first()..who.first() + COUNT).contains(&id)),
                Ok(None) => assert!(!rustix::process::geteuid().is_root()),
                // If the test runs in a container, the container's id map may lack the chosen id.
                Err(error) => assert!(error.to_string().contains("does not exist in this container")),
            }
        }
    }
}
