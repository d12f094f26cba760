//! The local destination of a copy. The copy is moved to its destination when it is complete.

use std::ffi::OsStr;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use bottle_archive::Rules;
use bottle_host::temporary::Temporary;
use bottle_repository::Directory;
use rustix::fs::FileType;

/// The destination of a copy.
#[derive(Debug)]
pub(super) struct Target {
    /// The existing directory in which the copy is placed.
    directory: PathBuf,
    /// The name of the copy in this directory.
    name: PathBuf,
}

impl Target {
    /// Chooses the destination. If `to` is an existing directory, the copy is placed in it and keeps its name.
    /// Otherwise `to` is the path of the copy.
    pub(super) fn choose(to: &Path, from: &str) -> io::Result<Self> {
        let own = Path::new(from).file_name().map_or_else(|| "workspace".into(), PathBuf::from);
        if to.is_dir() {
            return Ok(Self { directory: to.to_owned(), name: own });
        }
        if to.as_os_str().as_encoded_bytes().ends_with(b"/") {
            return Err(io::Error::new(io::ErrorKind::NotFound, "there is no such directory"));
        }
        let name = to.file_name().ok_or_else(|| io::Error::other("it has no file name"))?;
        let directory = to.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        if !directory.is_dir() {
            return Err(io::Error::new(io::ErrorKind::NotFound, "there is no such directory"));
        }
        Ok(Self { directory: directory.to_owned(), name: name.into() })
    }

    /// Unpacks the archive into a temporary directory on the disk of the destination, then moves the result to its
    /// destination. `temporary` removes the temporary directory. Returns the entries that were not unpacked.
    pub(super) fn unpack(self, archive: &mut dyn Read, temporary: &Temporary) -> io::Result<Vec<String>> {
        // An agent may change the destination at the same time, so nothing is opened by its full path from here on.
        let directory = Directory::open(&self.directory)?;
        let beside = temporary.directory_in(&self.directory)?;
        let name = beside.path().file_name().unwrap_or_default();
        let beside = directory.directory(Path::new(name))?.ok_or(io::ErrorKind::NotFound)?;
        let unpacked = bottle_archive::unpack(&beside, archive, &Rules::default())?;
        let top = unpacked.top.ok_or_else(|| io::Error::other("the copy is empty"))?;
        replace((&beside, top.as_os_str()), (&directory, self.name.as_os_str()))?;
        Ok(unpacked.skipped)
    }
}

/// An open directory, and the name of an entry in it.
type Place<'a> = (&'a Directory, &'a OsStr);

/// Moves `new` to `place`. Does not replace a file with a directory, or a directory with a file. If both are
/// directories, merges their entries, as `cp -r` does.
fn replace(new: Place<'_>, place: Place<'_>) -> io::Result<()> {
    let kind = |(directory, name): Place<'_>| -> io::Result<Option<FileType>> {
        Ok(directory.stat(Path::new(name))?.map(|found| FileType::from_raw_mode(found.st_mode)))
    };
    let is_directory = |kind: Option<FileType>| kind == Some(FileType::Directory);
    let shown = || place.0.path().join(place.1).display().to_string();
    let replaced = kind(place)?;
    match (is_directory(kind(new)?), is_directory(replaced)) {
        (true, true) => {
            let [new, place] = [new, place].map(|(directory, name)| directory.directory(Path::new(name)));
            let (new, place) = (new?.ok_or(io::ErrorKind::NotFound)?, place?.ok_or(io::ErrorKind::NotFound)?);
            let (names, _) = new.names(usize::MAX)?;
            names.iter().try_for_each(|name| replace((&new, name), (&place, name)))
        }
        (false, true) => Err(io::Error::other(format!("{} is a directory", shown()))),
        (true, false) if replaced.is_some() => {
            Err(io::Error::other(format!("{} is not a directory", shown())))
        }
        (true | false, false) => new.0.rename(new.1, place.0, place.1),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use tar::EntryType;

    use super::*;

    enum Piece<'a> {
        File(&'a str, u32, &'a str),
        Directory(&'a str),
        Link(&'a str, &'a str),
        Hard(&'a str, &'a str),
    }

    /// Builds an archive with names that an attacker might use. The writer of the `tar` crate would refuse or change
    /// these names.
    fn archive(pieces: &[Piece<'_>]) -> Vec<u8> {
        let mut builder = tar::Builder::new(Vec::new());
        for piece in pieces {
            let mut header = tar::Header::new_gnu();
            let (name, kind, mode, content, link) = match *piece {
                Piece::File(name, mode, content) => (name, EntryType::Regular, mode, content, ""),
                Piece::Directory(name) => (name, EntryType::Directory, 0o755, "", ""),
                Piece::Link(name, to) => (name, EntryType::Symlink, 0o777, "", to),
                Piece::Hard(name, to) => (name, EntryType::Link, 0o777, "", to),
            };
            header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
            header.as_old_mut().linkname[..link.len()].copy_from_slice(link.as_bytes());
            header.set_entry_type(kind);
            header.set_mode(mode);
            header.set_size(content.len() as u64);
            header.set_cksum();
            builder.append(&header, content.as_bytes()).expect("append");
        }
        builder.into_inner().expect("archive")
    }

    fn unpack(to: &Path, from: &str, pieces: &[Piece<'_>]) -> io::Result<Vec<String>> {
        let home = tempfile::tempdir().expect("home");
        let temporary = bottle_host::Host::of_home(home.path()).temporary("cp-").expect("made");
        Target::choose(to, from)?.unpack(&mut archive(pieces).as_slice(), &temporary)
    }

    #[test]
    fn unpacks_a_directory_without_setuid_bits() {
        let here = tempfile::tempdir().expect("directory");
        let pieces = [
            Piece::Directory("src/"),
            Piece::File("src/run", 0o6755, "hi"),
            Piece::Link("src/link", "run"),
            Piece::File("src/deep/er/file", 0o400, "x"),
        ];
        assert_eq!(unpack(here.path(), "a/src", &pieces).expect("copy"), [] as [String; 0]);
        let run = here.path().join("src/run").metadata().expect("file");
        assert_eq!(run.permissions().mode() & 0o7777, 0o755);
        assert_eq!(fs::read_to_string(here.path().join("src/link")).expect("link"), "hi");
        assert_eq!(fs::read_to_string(here.path().join("src/deep/er/file")).expect("file"), "x");
        assert_eq!(fs::read_dir(here.path()).expect("list").count(), 1, "nothing of the work is left");
    }

    #[test]
    fn renames_the_copy_and_merges_directories() {
        let here = tempfile::tempdir().expect("directory");
        let to = here.path().join("renamed");
        unpack(&to, "src", &[Piece::File("src", 0o644, "one")]).expect("copy");
        assert_eq!(fs::read_to_string(&to).expect("file"), "one");
        fs::create_dir(here.path().join("src")).expect("directory");
        fs::write(here.path().join("src/old"), "old").expect("write");
        unpack(here.path(), "src", &[Piece::File("src/new", 0o644, "new")]).expect("copy");
        assert!(here.path().join("src/old").exists() && here.path().join("src/new").exists());
        let error = unpack(&here.path().join("no/such"), "src", &[]).expect_err("an error");
        assert!(error.to_string().contains("no such directory"), "{error}");
    }

    #[test]
    fn entries_outside_the_copy_are_skipped() {
        let here = tempfile::tempdir().expect("directory");
        let outside = here.path().join("outside");
        fs::create_dir(&outside).expect("directory");
        fs::create_dir(here.path().join("to")).expect("directory");
        let absolute = outside.join("abs").display().to_string();
        let pieces = [
            Piece::Directory("top"),
            Piece::File("top/../../outside/a", 0o644, "x"),
            Piece::File(&absolute, 0o644, "x"),
            Piece::File("../b", 0o644, "x"),
            Piece::File("other/c", 0o644, "x"),
            Piece::Link("top/up", "../../outside"),
            Piece::Link("top/abs", "/etc"),
            Piece::Link("top/self", "in"),
            Piece::Directory("top/in"),
            Piece::File("top/self/through", 0o644, "x"),
            Piece::Hard("top/hard", "/etc/passwd"),
        ];
        let skipped = unpack(&here.path().join("to"), "top", &pieces).expect("copy");
        assert_eq!(skipped.len(), 8, "{skipped:?}");
        assert_eq!(fs::read_dir(&outside).expect("list").count(), 0);
        let mut names: Vec<_> = fs::read_dir(here.path().join("to/top"))
            .expect("list")
            .map(|entry| entry.expect("entry").file_name().into_string().expect("name"))
            .collect();
        names.sort();
        assert_eq!(names, ["in", "self"]);
        assert_eq!(fs::read_dir(here.path().join("to/top/in")).expect("list").count(), 0);
    }

    #[test]
    fn a_symlink_chain_cannot_leave_the_copy() {
        let here = tempfile::tempdir().expect("directory");
        fs::write(here.path().join("outside"), "mine").expect("write");
        let pieces = [
            Piece::Directory("top/a/b/c"),
            Piece::Link("top/a/b/c/up", "../../.."),
            Piece::Link("top/a/b/c/out", "up/../outside"),
            Piece::Link("top/a/b/c/within", "up/a/b"),
        ];
        let skipped = unpack(here.path(), "top", &pieces).expect("copy");
        assert_eq!(skipped, ["top/a/b/c/out"]);
        assert!(fs::read_to_string(here.path().join("top/a/b/c/out")).is_err(), "it led out of the copy");
        assert!(here.path().join("top/a/b/c/within/c").is_dir());
    }

    #[test]
    fn replaces_a_local_symlink_without_following_it() {
        let here = tempfile::tempdir().expect("directory");
        fs::write(here.path().join("precious"), "mine").expect("write");
        std::os::unix::fs::symlink("precious", here.path().join("note")).expect("link");
        unpack(here.path(), "note", &[Piece::File("note", 0o644, "theirs")]).expect("copy");
        assert_eq!(fs::read_to_string(here.path().join("precious")).expect("file"), "mine");
        assert_eq!(fs::read_to_string(here.path().join("note")).expect("file"), "theirs");
    }

    /// A reader that replaces a directory of the copy with a symlink after a part of the archive was read.
    struct Exchanging<'a> {
        archive: &'a [u8],
        here: &'a Path,
        outside: &'a Path,
        left: usize,
    }

    impl Read for Exchanging<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let length = buffer.len().min(512);
            let read = self.archive.read(&mut buffer[..length])?;
            let beside = fs::read_dir(self.here)?.next().transpose()?.map(|entry| entry.path());
            self.left = self.left.saturating_sub(1);
            if let Some(beside) = beside.filter(|beside| self.left == 0 && beside.join("top/deep").is_dir()) {
                self.left = usize::MAX;
                fs::rename(beside.join("top/deep"), beside.join("moved"))?;
                std::os::unix::fs::symlink(self.outside, beside.join("top/deep"))?;
            }
            Ok(read)
        }
    }

    /// While the copy is written, an agent in the destination replaces a directory of the copy with a symlink.
    #[test]
    fn no_file_is_written_through_a_link_that_appears_meanwhile() {
        let top = tempfile::tempdir().expect("a directory");
        let (here, outside) = (top.path().join("here"), top.path().join("outside"));
        fs::create_dir(&here).expect("made");
        fs::create_dir(&outside).expect("made");
        // Successive files are in different directories, so that each directory is opened again.
        let path = |at: i32| if at % 2 == 0 { format!("top/deep/{at}") } else { format!("top/{at}") };
        let names: Vec<String> = (0..40).map(path).collect();
        let mut pieces = vec![Piece::Directory("top"), Piece::Directory("top/deep")];
        for name in &names {
            pieces.push(Piece::File(name, 0o644, "evil"));
        }
        let bytes = archive(&pieces);
        for left in [8, 20, 40] {
            let home = tempfile::tempdir().expect("home");
            let temporary = bottle_host::Host::of_home(home.path()).temporary("cp-").expect("made");
            let mut archive = Exchanging { archive: &bytes, here: &here, outside: &outside, left };
            let _ = Target::choose(&here, "top").expect("a target").unpack(&mut archive, &temporary);
            assert!(archive.left > 1000, "nothing was exchanged");
            assert_eq!(fs::read_dir(&outside).expect("listed").count(), 0, "{left}");
        }
    }

    /// A directory of the destination may become a symlink after it was checked. In this case, `replace` moves nothing
    /// into it.
    #[test]
    fn nothing_is_moved_through_a_link() {
        let top = tempfile::tempdir().expect("a directory");
        for path in ["new/d/x", "outside/x", "here/y"] {
            let path = top.path().join(path);
            fs::create_dir_all(path.parent().expect("a parent")).expect("made");
            fs::write(path, "mine").expect("written");
        }
        std::os::unix::fs::symlink("../outside", top.path().join("here/d")).expect("link");
        let open = |name: &str| Directory::open(&top.path().join(name)).expect("opened");
        let (new, here) = (open("new"), open("here"));
        let refused = replace((&new, "d".as_ref()), (&here, "d".as_ref())).expect_err("a link");
        assert!(refused.to_string().ends_with("d is not a directory"), "{refused}");
    }

    #[test]
    fn a_truncated_archive_leaves_no_files() {
        let here = tempfile::tempdir().expect("directory");
        let home = tempfile::tempdir().expect("home");
        let temporary = bottle_host::Host::of_home(home.path()).temporary("cp-").expect("made");
        let mut bytes = archive(&[Piece::File("big", 0o644, &"x".repeat(4000))]);
        bytes.truncate(1500);
        let target = Target::choose(here.path(), "big").expect("target");
        assert!(target.unpack(&mut bytes.as_slice(), &temporary).is_err());
        assert_eq!(fs::read_dir(here.path()).expect("list").count(), 0);
    }
}
