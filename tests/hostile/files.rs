//! Cases for each file that a command interprets: the file is a link, a named pipe, a device, huge, or malformed.

use std::fs::File;

use anyhow::Result;
use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};

use crate::Case;
use crate::place::Place;

/// The files, with the names of their cases.
const FILES: [(&str, &str); 24] = [
    ("attributes", ".git/info/attributes"),
    ("commit-graph", ".git/objects/info/commit-graph"),
    ("commit-graph-chain", ".git/objects/info/commit-graphs/commit-graph-chain"),
    ("commondir", ".git/commondir"),
    ("config", ".git/config"),
    ("config-worktree", ".git/config.worktree"),
    ("exclude", ".git/info/exclude"),
    ("git", ".git"),
    ("gitattributes", ".gitattributes"),
    ("gitignore", ".gitignore"),
    ("gitmodules", ".gitmodules"),
    ("grafts", ".git/info/grafts"),
    ("HEAD", ".git/HEAD"),
    ("index", ".git/index"),
    ("multi-pack-index", ".git/objects/pack/multi-pack-index"),
    ("nested-gitignore", "sub/.gitignore"),
    ("pack", ".git/objects/pack/pack-0123456789abcdef0123456789abcdef01234567.pack"),
    ("pack-index", ".git/objects/pack/pack-0123456789abcdef0123456789abcdef01234567.idx"),
    ("packed-refs", ".git/packed-refs"),
    ("python-version", ".python-version"),
    ("reference", ".git/refs/heads/main"),
    ("reflog", ".git/logs/HEAD"),
    ("shallow", ".git/shallow"),
    ("sparse-checkout", ".git/info/sparse-checkout"),
];

/// The size of a huge file. It is more than the memory that a command may use, but small enough that an export, which
/// scans all files, does not take long. The file takes no disk space.
const HUGE: u64 = 512 << 20;

pub(crate) fn cases() -> Vec<Case> {
    FILES.iter().flat_map(|(name, path)| of_file(name, &format!("project/{path}"))).collect()
}

fn of_file(name: &str, path: &str) -> Vec<Case> {
    let case = |kind: &str, make: fn(&Place, &str) -> Result<()>| {
        let path = path.to_owned();
        Case::new(format!("{name}-{kind}"), move |place: &Place| {
            place.repository("project")?;
            let _ = place.clear(&path)?;
            make(place, &path)
        })
    };
    let device_path = path.to_owned();
    let device = Case {
        name: format!("{name}-device"),
        make: Box::new(move |place| {
            place.repository("project")?;
            let device = place.clear(&device_path)?;
            let made =
                mknodat(CWD, device, FileType::CharacterDevice, Mode::from_raw_mode(0o666), makedev(1, 5));
            Ok(made.err().map(|error| format!("this user can make no device: {error}")))
        }),
    };
    vec![
        case("link", |place, path| place.link(place.path("home/.ssh/id_ed25519"), path)),
        case("zero", |place, path| place.link("/dev/zero", path)),
        case("pipe", pipe),
        case("huge", |place, path| Ok(File::create(place.path(path))?.set_len(HUGE)?)),
        case("malformed", |place, path| place.write(path, b"\0\xff[\"\n\x1b]0;x\x07".repeat(1000))),
        device,
    ]
}

/// Creates a named pipe.
pub(crate) fn pipe(place: &Place, path: &str) -> Result<()> {
    Ok(mknodat(CWD, place.clear(path)?, FileType::Fifo, Mode::RWXU, 0)?)
}
