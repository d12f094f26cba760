//! Locates a skill and lists its files.
//!
//! A skill is a folder in `$BOTTLE_HOME/skills/`, else in `~/.claude/skills/`; never in a project. It is copied into
//! the bottle, so its size is bounded, and no link in it may point outside: a link to `~/.ssh` would give the agent a
//! key.

use std::fs::Metadata;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use bottle_contract::names::Name;
use serde::Serialize;

use super::locate::Homes;
use crate::host::plain_file;

/// Most files of one skill.
pub const MAX_FILES: usize = 1_000;
/// Most bytes of one skill: every launch sends them through the channel.
pub const MAX_BYTES: u64 = 32 << 20;
/// Most levels of a skill's folders; also ends a cycle of links.
const MAX_DEPTH: usize = 16;

/// A skill that exists.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Skill {
    /// Its name.
    pub name: Name,
    /// The folder.
    pub folder: PathBuf,
    /// Its files, sorted by path.
    pub files: Vec<SkillFile>,
}

/// One file of a skill.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct SkillFile {
    /// Relative to the skill's folder, with `/`.
    pub path: String,
    /// The file itself, every link resolved.
    pub source: PathBuf,
    /// Bytes.
    pub size: u64,
    /// Whether its owner may execute it.
    pub executable: bool,
}

/// An unusable skill. Displayed as a fragment that follows the skill's name.
#[derive(Debug, thiserror::Error)]
pub enum SkillError {
    /// No such folder.
    #[error("does not exist: neither {} nor {}", .tried[0].display(), .tried[1].display())]
    Missing {
        /// The candidate folders.
        tried: [PathBuf; 2],
    },
    /// A file where a folder should be.
    #[error("is not a folder: {}", .0.display())]
    NoFolder(PathBuf),
    /// A link that points outside the folder.
    #[error("contains a link that points outside its folder: {}", .0.display())]
    Outside(PathBuf),
    /// A pipe, a socket or a device.
    #[error("contains an entry that is neither file nor folder: {}", .0.display())]
    Special(PathBuf),
    /// An unsupported file name.
    #[error("contains a file whose name is not UTF-8 or has control characters: {:?}", .0)]
    Unnameable(PathBuf),
    /// Too many files, or too deep.
    #[error("contains more than {MAX_FILES} files or more than {MAX_DEPTH} levels of folders")]
    TooMany,
    /// Too many bytes.
    #[error("contains more than {} MiB", MAX_BYTES >> 20)]
    TooLarge,
    /// An I/O error.
    #[error("cannot be read: {}: {error}", .path.display())]
    Unreadable {
        /// The path.
        path: PathBuf,
        /// The cause.
        error: io::Error,
    },
}

impl Skill {
    /// Finds a skill and lists its files.
    ///
    /// # Errors
    /// [`SkillError`] when it is missing, reaches out of its folder, or is too large.
    pub fn locate(homes: &Homes, name: &Name) -> Result<Self, SkillError> {
        let roots = [homes.bottle_home.join("skills"), homes.user_home.join(".claude/skills")];
        let folders = roots.clone().map(|root| root.join(name.as_str()));
        let found = folders.iter().position(|folder| folder.symlink_metadata().is_ok());
        let Some(index) = found else { return Err(SkillError::Missing { tried: folders }) };
        let (root, folder) = (&roots[index], &folders[index]);
        let real = canonical(folder)?;
        // The `skills` folder may be a link, as in many dotfiles; a skill in it may not.
        if real != canonical(root)?.join(name.as_str()) {
            return Err(SkillError::Outside(folder.clone()));
        }
        if !metadata(&real)?.is_dir() {
            return Err(SkillError::NoFolder(folder.clone()));
        }
        let mut walk = Walk { root: real.clone(), files: Vec::new(), bytes: 0 };
        walk.folder(&real, "", 0)?;
        walk.files.sort();
        Ok(Self { name: name.clone(), folder: folder.clone(), files: walk.files })
    }

    /// Reads a file, if it is still a regular file of the listed size.
    ///
    /// # Errors
    /// [`SkillError`] when it has changed or cannot be read.
    pub fn read(file: &SkillFile) -> Result<Vec<u8>, SkillError> {
        let unreadable = |error| SkillError::Unreadable { path: file.source.clone(), error };
        let bytes = plain_file::read(&file.source, file.size).map_err(unreadable)?;
        if bytes.len() as u64 == file.size {
            Ok(bytes)
        } else {
            Err(unreadable(io::Error::other("its size changed during the launch")))
        }
    }
}

/// A walk through a skill's folder.
struct Walk {
    root: PathBuf,
    files: Vec<SkillFile>,
    bytes: u64,
}

impl Walk {
    fn folder(&mut self, folder: &Path, prefix: &str, depth: usize) -> Result<(), SkillError> {
        if depth >= MAX_DEPTH {
            return Err(SkillError::TooMany);
        }
        let unreadable = |error| SkillError::Unreadable { path: folder.to_owned(), error };
        for entry in folder.read_dir().map_err(unreadable)? {
            let path = entry.map_err(unreadable)?.path();
            let name = path
                .file_name()
                .and_then(|name| name.to_str())
                .filter(|name| !name.contains(char::is_control));
            let Some(name) = name else { return Err(SkillError::Unnameable(path)) };
            let inside = if prefix.is_empty() { name.to_owned() } else { format!("{prefix}/{name}") };
            let real = canonical(&path)?;
            if !real.starts_with(&self.root) {
                return Err(SkillError::Outside(path));
            }
            let metadata = metadata(&real)?;
            if metadata.is_dir() {
                self.folder(&real, &inside, depth + 1)?;
            } else {
                self.file(inside, real, &metadata)?;
            }
        }
        Ok(())
    }

    fn file(&mut self, path: String, source: PathBuf, metadata: &Metadata) -> Result<(), SkillError> {
        if !metadata.is_file() {
            return Err(SkillError::Special(source));
        }
        self.bytes = self.bytes.saturating_add(metadata.len());
        if self.bytes > MAX_BYTES {
            return Err(SkillError::TooLarge);
        }
        if self.files.len() == MAX_FILES {
            return Err(SkillError::TooMany);
        }
        let executable = metadata.permissions().mode() & 0o100 != 0;
        self.files.push(SkillFile { path, source, size: metadata.len(), executable });
        Ok(())
    }
}

fn canonical(path: &Path) -> Result<PathBuf, SkillError> {
    path.canonicalize().map_err(|error| SkillError::Unreadable { path: path.to_owned(), error })
}

fn metadata(path: &Path) -> Result<Metadata, SkillError> {
    path.metadata().map_err(|error| SkillError::Unreadable { path: path.to_owned(), error })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    fn homes() -> (tempfile::TempDir, Homes) {
        let temp = tempfile::tempdir().expect("temporary folder");
        let user_home = temp.path().to_owned();
        fs::create_dir_all(user_home.join(".claude/skills/review/scripts")).expect("skills");
        fs::write(user_home.join(".claude/skills/review/SKILL.md"), "# Review").expect("skill");
        fs::write(user_home.join(".claude/skills/review/scripts/run.sh"), "#!/bin/sh").expect("script");
        let homes = Homes { bottle_home: user_home.join(".bottle"), cwd: user_home.join("work"), user_home };
        (temp, homes)
    }

    fn locate(homes: &Homes, name: &str) -> Result<Skill, SkillError> {
        Skill::locate(homes, &name.parse().expect("name"))
    }

    #[test]
    fn lists_and_reads_a_skills_files() {
        let (_temp, homes) = homes();
        let skill = locate(&homes, "review").expect("skill");
        let files: Vec<_> = skill.files.iter().map(|file| (file.path.as_str(), file.size)).collect();
        assert_eq!(files, [("SKILL.md", 8), ("scripts/run.sh", 9)]);
        assert_eq!(Skill::read(&skill.files[0]).expect("bytes"), b"# Review");
        fs::write(&skill.files[0].source, "# Review and more").expect("change");
        assert!(Skill::read(&skill.files[0]).is_err());
    }

    #[test]
    fn bottle_home_comes_first() {
        let (_temp, homes) = homes();
        fs::create_dir_all(homes.bottle_home.join("skills/review")).expect("skill");
        let skill = locate(&homes, "review").expect("skill");
        assert_eq!(skill.folder, homes.bottle_home.join("skills/review"));
        assert_eq!(skill.files, []);
    }

    #[test]
    fn accepts_only_links_inside_the_skill() {
        let (_temp, homes) = homes();
        let folder = homes.user_home.join(".claude/skills/review");
        symlink("SKILL.md", folder.join("README.md")).expect("link");
        assert_eq!(locate(&homes, "review").expect("skill").files.len(), 3);
        symlink("..", folder.join("scripts/again")).expect("link");
        assert!(matches!(locate(&homes, "review"), Err(SkillError::TooMany)));
        fs::remove_file(folder.join("scripts/again")).expect("remove");
        fs::write(homes.user_home.join("id_ed25519"), "key").expect("key");
        symlink(homes.user_home.join("id_ed25519"), folder.join("notes.md")).expect("link");
        assert!(matches!(locate(&homes, "review"), Err(SkillError::Outside(_))));
    }

    #[test]
    fn refuses_a_skill_that_is_itself_a_link() {
        let (_temp, homes) = homes();
        fs::create_dir_all(homes.user_home.join(".ssh")).expect("folder");
        symlink(homes.user_home.join(".ssh"), homes.user_home.join(".claude/skills/keys")).expect("link");
        assert!(matches!(locate(&homes, "keys"), Err(SkillError::Outside(_))));
        assert!(matches!(locate(&homes, "none"), Err(SkillError::Missing { .. })));
        fs::write(homes.user_home.join(".claude/skills/file"), "").expect("file");
        assert!(matches!(locate(&homes, "file"), Err(SkillError::NoFolder(_))));
    }

    #[test]
    fn refuses_sockets_and_large_files() {
        let (_temp, homes) = homes();
        let folder = homes.user_home.join(".claude/skills/review");
        let big = fs::File::create(folder.join("big")).expect("file");
        big.set_len(MAX_BYTES).expect("size");
        assert!(matches!(locate(&homes, "review"), Err(SkillError::TooLarge)));
        fs::remove_file(folder.join("big")).expect("remove");
        let socket = std::os::unix::net::UnixListener::bind(folder.join("socket")).expect("socket");
        assert!(matches!(locate(&homes, "review"), Err(SkillError::Special(_))));
        drop(socket);
    }
}
