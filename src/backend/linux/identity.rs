//! Who an agent is outside, and who its guards are: exactly one user of the host each, and never root.
//!
//! Inside there is one id, [`bottle_contract::names::AGENT_UID`] or that of an image's user. For an ordinary user it is that user, as a sandbox of theirs
//! can be no one else. When root starts a bottle it is an id of the bottle's own out of the range that
//! systemd's id plan leaves unused (0x7000_0000 to 0x7fff_ffff), by a hash of home and slug: a kept bottle
//! finds its files owned as it left them, and two bottles are two users. Nothing of the host is owned by
//! such an id, so root-only files stay closed and set-id programs have nothing to give. The guards, which
//! hold credentials and read what the agent sends, have an id of their own in the same way; started by an
//! ordinary user, they are that user too, confined by [`bottle_harden`].

use std::fs;
use std::io;

use bottle_contract::names::Slug;
use sha2::{Digest, Sha256};

use super::spec::Inside;

/// Size of a range of ids; all of them stay below what a signed 32-bit number holds.
const COUNT: u32 = 1 << 24;

/// Whose id is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Who {
    /// Everything in the bottle.
    Agent,
    /// The bundle and its daemons.
    Guards,
}

impl Who {
    /// Start of the range of ids.
    fn first(self) -> u32 {
        match self {
            Self::Agent => 0x7000_0000,
            Self::Guards => 0x7100_0000,
        }
    }
}

/// The outside id for a bottle of this program's user: `None` for an ordinary one.
///
/// # Errors
/// When root here may not use such ids (a container with a short id map).
pub(super) fn outside_id(home_hash: &str, slug: &Slug, who: Who) -> io::Result<Option<u32>> {
    if !rustix::process::geteuid().is_root() {
        return Ok(None);
    }
    let taken = Taken::read();
    let digest = Sha256::digest(format!("{home_hash}/{slug}"));
    let hash = u32::from_be_bytes([0, digest[0], digest[1], digest[2]]);
    let id = (0..COUNT).map(|step| who.first() + (hash + step) % COUNT).find(|id| !taken.holds(*id));
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

/// Maps the one id of the user namespace that process `pid` stands in; root's half of the work.
///
/// # Errors
/// When this process may not.
pub(super) fn map_from_outside(pid: u32, outside_id: u32, inside: Inside) -> io::Result<()> {
    fs::write(format!("/proc/{pid}/gid_map"), format!("{} {outside_id} 1", inside.gid))?;
    fs::write(format!("/proc/{pid}/uid_map"), format!("{} {outside_id} 1", inside.uid))
}

/// Maps the one id of this process's own new user namespace: an ordinary user's half.
///
/// # Errors
/// When this process may not.
pub(super) fn map_self(uid: u32, gid: u32, inside: Inside) -> io::Result<()> {
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/gid_map", format!("{} {gid} 1", inside.gid))?;
    fs::write("/proc/self/uid_map", format!("{} {uid} 1", inside.uid))
}

/// Ids that the machine's files give away.
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

    fn holds(&self, id: u32) -> bool {
        self.0.iter().any(|(first, count)| id >= *first && id - first < *count)
    }
}

/// Whether an id map has this id on its inside.
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
    fn ids_are_looked_up_in_maps_and_ranges() {
        let whole = "         0          0 4294967295\n";
        let rootless = "0 1000 1\n1 100000 65536\n";
        let first = Who::Agent.first();
        assert!(maps(whole, first) && maps(whole, Who::Guards.first() + COUNT - 1));
        assert!(!maps(rootless, first) && maps(rootless, 65_536) && !maps("", 0));
        let taken = Taken(vec![(first, 2), (1000, 1)]);
        assert!(taken.holds(first + 1) && !taken.holds(first + 2) && taken.holds(1000));
    }

    #[test]
    fn root_never_lends_its_own_id() {
        let slug: Slug = "a-1".parse().expect("slug");
        for who in [Who::Agent, Who::Guards] {
            match outside_id("01234567", &slug, who) {
                Ok(Some(id)) => assert!((who.first()..who.first() + COUNT).contains(&id)),
                Ok(None) => assert!(!rustix::process::geteuid().is_root()),
                // A container with a short id map has no such id, and says so.
                Err(error) => assert!(error.to_string().contains("does not exist in this container")),
            }
        }
    }
}
