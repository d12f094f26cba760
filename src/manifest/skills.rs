//! A skill's name → the files it stands for.
//!
//! A skill is a folder under `$BOTTLE_HOME/skills/` or, where none is there, `~/.claude/skills/`; never
//! under a project. It is copied into the bottle, so it is counted and measured first, and nothing in
//! it may be a link that leads out of it: a link to `~/.ssh` would carry a key to the agent.

use std::fs::Metadata;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use bottle_contract::names::Name;
use serde::Serialize;

use super::locate::Homes;
use crate::host::plain_file;

/// The most files of one skill.
pub const MAX_FILES: usize = 1_000;
/// The most bytes of one skill: it is sent through the channel at every launch.
pub const MAX_BYTES: u64 = 32 << 20;
/// How deep a skill's folders may nest; also what ends a link that leads in a circle.
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

/// A skill that cannot be used. Displayed as a fragment that follows the skill's name.
#[derive(Debug, thiserror::Error)]
pub enum SkillError {
    /// No such folder.
    #[error("is not there; looked for {} and {}", .looked[0].display(), .looked[1].display())]
    Missing {
        /// Where it was looked for.
        looked: [PathBuf; 2],
    },
    /// A file where a folder should be.
    #[error("is not a folder: {}", .0.display())]
    NoFolder(PathBuf),
    /// A link out of the folder.
    #[error("holds a link that leads out of its folder: {}", .0.display())]
    LeadsOut(PathBuf),
    /// A pipe, a socket or a device.
    #[error("holds something that is neither file nor folder: {}", .0.display())]
    Special(PathBuf),
    /// A file name that no manifest of files can carry.
    #[error("holds a file whose name is not UTF-8 or has control characters: {:?}", .0)]
    Unnameable(PathBuf),
    /// Too many files, or too deep.
    #[error("holds more than {MAX_FILES} files or more than {MAX_DEPTH} levels of folders")]
    TooMany,
    /// Too many bytes.
    #[error("holds more than {} MiB", MAX_BYTES >> 20)]
    TooLarge,
    /// The system said no.
    #[error("cannot be read: {}: {error}", .path.display())]
    Unreadable {
        /// What was being read.
        path: PathBuf,
        /// Why it could not be.
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
        let Some(index) = found else { return Err(SkillError::Missing { looked: folders }) };
        let (root, folder) = (&roots[index], &folders[index]);
        let real = canonical(folder)?;
        // The skills' own folder may be a link (dotfiles are often kept elsewhere); a skill in it may not.
        if real != canonical(root)?.join(name.as_str()) {
            return Err(SkillError::LeadsOut(folder.clone()));
        }
        if !metadata(&real)?.is_dir() {
            return Err(SkillError::NoFolder(folder.clone()));
        }
        let mut walk = Walk { root: real.clone(), files: Vec::new(), bytes: 0 };
        walk.folder(&real, "", 0)?;
        walk.files.sort();
        Ok(Self { name: name.clone(), folder: folder.clone(), files: walk.files })
    }

    /// A file's bytes, as long as it is still a file of the size that was listed.
    ///
    /// # Errors
    /// [`SkillError`] when it has changed or cannot be read.
    pub fn read(file: &SkillFile) -> Result<Vec<u8>, SkillError> {
        let unreadable = |error| SkillError::Unreadable { path: file.source.clone(), error };
        let bytes = plain_file::read(&file.source, file.size).map_err(unreadable)?;
        if bytes.len() as u64 == file.size {
            Ok(bytes)
        } else {
            Err(unreadable(io::Error::other("its size changed while the bottle was being made")))
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
                return Err(SkillError::LeadsOut(path));
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
    fn a_skill_is_its_files() {
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
    fn links_stay_inside() {
        let (_temp, homes) = homes();
        let folder = homes.user_home.join(".claude/skills/review");
        symlink("SKILL.md", folder.join("README.md")).expect("link");
        assert_eq!(locate(&homes, "review").expect("skill").files.len(), 3);
        symlink("..", folder.join("scripts/again")).expect("link");
        assert!(matches!(locate(&homes, "review"), Err(SkillError::TooMany)));
        fs::remove_file(folder.join("scripts/again")).expect("remove");
        fs::write(homes.user_home.join("id_ed25519"), "key").expect("key");
        symlink(homes.user_home.join("id_ed25519"), folder.join("notes.md")).expect("link");
        assert!(matches!(locate(&homes, "review"), Err(SkillError::LeadsOut(_))));
    }

    #[test]
    fn the_folder_itself_is_no_link_out() {
        let (_temp, homes) = homes();
        fs::create_dir_all(homes.user_home.join(".ssh")).expect("folder");
        symlink(homes.user_home.join(".ssh"), homes.user_home.join(".claude/skills/keys")).expect("link");
        assert!(matches!(locate(&homes, "keys"), Err(SkillError::LeadsOut(_))));
        assert!(matches!(locate(&homes, "none"), Err(SkillError::Missing { .. })));
        fs::write(homes.user_home.join(".claude/skills/file"), "").expect("file");
        assert!(matches!(locate(&homes, "file"), Err(SkillError::NoFolder(_))));
    }

    #[test]
    fn pipes_and_sizes_are_refused() {
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
