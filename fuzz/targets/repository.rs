//! Fuzzes the readers of git's own files, which an agent or a project can write: the configuration, the index, the
//! references and the ignore rules. None may panic, or need more memory than the bounds permit.
#![no_main]

use std::path::Path;
use std::sync::LazyLock;

use bottle_repository::config::Config;
use bottle_repository::copied_config::{CopiedConfig, Of};
use bottle_repository::index::LeftOut;
use bottle_repository::refs::{Refs, Storage};
use bottle_repository::{Directory, IgnoreRules, Index, IndexFiles, ObjectFormat};

/// The files that are read from a directory, each with these bytes.
const FILES: [&str; 4] = ["HEAD", "packed-refs", "index", ".gitignore"];

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Some((choice, bytes)) = bytes.split_first() else { return };
    match usize::from(*choice) % (FILES.len() + 3) {
        0 => configuration(bytes),
        1 => index(bytes, None),
        file if file - 2 < FILES.len() => read(FILES[file - 2], bytes),
        // A split index, whose length in bytes comes first, and the shared one.
        _ => {
            let Some((length, bytes)) = bytes.split_first_chunk() else { return };
            let length = usize::from(u16::from_be_bytes(*length)).min(bytes.len());
            let (split, shared) = bytes.split_at(length);
            index(split, Some(shared));
        }
    }
});

fn index(bytes: &[u8], shared: Option<&[u8]>) {
    for format in [ObjectFormat::Sha1, ObjectFormat::Sha256] {
        let _ = IndexFiles::of(bytes.to_owned(), shared.map(<[u8]>::to_owned), format)
            .and_then(|index| LeftOut::of(&index));
    }
}

/// The configuration of a copy is well-formed, and names no program.
fn configuration(bytes: &[u8]) {
    let Some(config) = Config::parse(bytes) else { return };
    for of in [Of::Tree, Of::Submodule, Of::Bare] {
        let copied = Config::parse(&CopiedConfig::of(&config, of, false).text).expect("well-formed");
        for name in ["hookspath", "fsmonitor", "editor", "sshcommand", "pager", "askpass"] {
            assert!(copied.last("core", name).is_none(), "{name}");
        }
    }
}

/// Reads the only file of a directory, which all inputs use.
fn read(file: &str, bytes: &[u8]) {
    static TOP: LazyLock<tempfile::TempDir> = LazyLock::new(|| tempfile::tempdir().expect("a directory"));
    let path = TOP.path().join(file);
    std::fs::write(&path, bytes).expect("written");
    let directory = Directory::open(TOP.path()).expect("opened");
    let refs = Refs { git: &directory, common: &directory, storage: Storage::Files };
    let _ = (refs.head(), refs.all(), refs.find("refs/heads/main"), refs.checked_out("refs/heads/main"));
    let _ = Index::read(&directory);
    let mut rules = IgnoreRules::default();
    if rules.enter(&directory, Path::new("")).is_ok() {
        let _ = rules.ignores(Path::new("a/b c/d.log"), false);
    }
    std::fs::remove_file(path).expect("removed");
}
