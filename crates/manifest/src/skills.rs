//! Finds a skill and lists its files.
//!
//! A skill is a directory in `$BOTTLE_HOME/skills/` or otherwise in `~/.claude/skills/`; skills in a project are not
//! used. A skill is copied into the bottle, so its size is limited. No link in a skill may point outside the skill's
//! directory, because a link to `~/.ssh` would give the agent a key.

use std::fs::Metadata;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use bottle_host::plain_file;
use bottle_policy::names::Name;
use serde::Serialize;

use super::locate::Homes;

/// The maximum number of files of a skill. A skill with more files is refused.
pub const MAX_FILES: usize = 1_000;
/// The maximum total size of a skill's files in bytes, because every launch sends the files into the bottle. A
/// larger skill is refused.
pub const MAX_BYTES: u64 = 32 << 20;
/// The maximum depth of directories in a skill. A deeper skill is refused, so a walk through a cycle of links ends.
const MAX_DEPTH: usize = 16;

/// An existing skill.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Skill {
    /// The name of the skill.
    pub name: Name,
    /// The directory of the skill.
    #[serde(rename = "folder")]
    pub directory: PathBuf,
    /// The files of the skill, sorted by path.
    pub files: Vec<SkillFile>,
}

/// One file of a skill.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct SkillFile {
    /// The path relative to the skill's directory, with `/` as separator.
    pub path: String,
    /// The path of the file on the host, with all links resolved.
    pub source: PathBuf,
    /// The size of the file in bytes.
    pub size: u64,
    /// Whether the owner of the file may execute the file.
    pub executable: bool,
}

/// Why a skill cannot be used. Displayed as a sentence fragment that follows the skill's name.
#[derive(Debug, thiserror::Error)]
pub enum SkillError {
    /// The skill's directory does not exist.
    #[error("does not exist: neither {} nor {}", .tried[0].display(), .tried[1].display())]
    Missing {
        /// The directories that were searched for the skill.
        tried: [PathBuf; 2],
    },
    /// The path is a file, not a directory.
    #[error("is not a directory: {}", .0.display())]
    NoDirectory(PathBuf),
    /// A link points outside the skill's directory.
    #[error("contains a link that points outside its directory: {}", .0.display())]
    Outside(PathBuf),
    /// An entry is a pipe, a socket or a device.
    #[error("contains an entry that is neither file nor directory: {}", .0.display())]
    Special(PathBuf),
    /// A file name is not UTF-8 or contains control characters.
    #[error("contains a file whose name is not UTF-8 or has control characters: {:?}", .0)]
    Unnameable(PathBuf),
    /// The skill has too many files or too many levels of directories.
    #[error("contains more than {MAX_FILES} files or more than {MAX_DEPTH} levels of directories")]
    TooMany,
    /// The skill is too large.
    #[error("contains more than {} MiB", MAX_BYTES >> 20)]
    TooLarge,
    /// A file or directory of the skill cannot be read.
    #[error("cannot be read: {}: {error}", .path.display())]
    Unreadable {
        /// The path of the file or directory that cannot be read.
        path: PathBuf,
        /// The I/O error.
        error: io::Error,
    },
}

impl Skill {
    /// Finds a skill and lists its files.
    ///
    /// # Errors
    /// Returns [`SkillError`] if the skill is missing, contains a link that points outside its directory, or is
    /// too large.
    pub fn locate(homes: &Homes, name: &Name) -> Result<Self, SkillError> {
        let roots = [homes.bottle_home.join("skills"), homes.user_home.join(".claude/skills")];
        let directories = roots.clone().map(|root| root.join(name.as_str()));
        let found = directories.iter().position(|directory| directory.symlink_metadata().is_ok());
        let Some(index) = found else { return Err(SkillError::Missing { tried: directories }) };
        let (root, directory) = (&roots[index], &directories[index]);
        let real = canonical(directory)?;
        // The directory `skills` may be a link, because many users link it to their dotfiles. The directory of a skill
        // may not be a link.
        if real != canonical(root)?.join(name.as_str()) {
            return Err(SkillError::Outside(directory.clone()));
        }
        if !metadata(&real)?.is_dir() {
            return Err(SkillError::NoDirectory(directory.clone()));
        }
        let mut walk = Walk { root: real.clone(), files: Vec::new(), bytes: 0 };
        walk.directory(&real, "", 0)?;
        walk.files.sort();
        Ok(Self { name: name.clone(), directory: directory.clone(), files: walk.files })
    }

    /// Reads a file of a skill, if the file is still regular and has the size that [`Skill::locate`] listed.
    ///
    /// # Errors
    /// Returns [`SkillError`] if the file has changed or cannot be read.
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

/// Walks through the directory of a skill.
struct Walk {
    root: PathBuf,
    files: Vec<SkillFile>,
    bytes: u64,
}

impl Walk {
    fn directory(&mut self, directory: &Path, prefix: &str, depth: usize) -> Result<(), SkillError> {
        if depth >= MAX_DEPTH {
            return Err(SkillError::TooMany);
        }
        let unreadable = |error| SkillError::Unreadable { path: directory.to_owned(), error };
        for entry in directory.read_dir().map_err(unreadable)? {
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
                self.directory(&real, &inside, depth + 1)?;
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
        let temp = tempfile::tempdir().expect("temporary directory");
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
        assert_eq!(skill.directory, homes.bottle_home.join("skills/review"));
        assert_eq!(skill.files, []);
    }

    #[test]
    fn accepts_only_links_inside_the_skill() {
        let (_temp, homes) = homes();
        let directory = homes.user_home.join(".claude/skills/review");
        symlink("SKILL.md", directory.join("README.md")).expect("link");
        assert_eq!(locate(&homes, "review").expect("skill").files.len(), 3);
        symlink("..", directory.join("scripts/again")).expect("link");
        assert!(matches!(locate(&homes, "review"), Err(SkillError::TooMany)));
        fs::remove_file(directory.join("scripts/again")).expect("remove");
        fs::write(homes.user_home.join("id_ed25519"), "key").expect("key");
        symlink(homes.user_home.join("id_ed25519"), directory.join("notes.md")).expect("link");
        assert!(matches!(locate(&homes, "review"), Err(SkillError::Outside(_))));
    }

    #[test]
    fn refuses_a_skill_that_is_itself_a_link() {
        let (_temp, homes) = homes();
        fs::create_dir_all(homes.user_home.join(".ssh")).expect("directory");
        symlink(homes.user_home.join(".ssh"), homes.user_home.join(".claude/skills/keys")).expect("link");
        assert!(matches!(locate(&homes, "keys"), Err(SkillError::Outside(_))));
        assert!(matches!(locate(&homes, "none"), Err(SkillError::Missing { .. })));
        fs::write(homes.user_home.join(".claude/skills/file"), "").expect("file");
        assert!(matches!(locate(&homes, "file"), Err(SkillError::NoDirectory(_))));
    }

    #[test]
    fn refuses_sockets_and_large_files() {
        let (_temp, homes) = homes();
        let directory = homes.user_home.join(".claude/skills/review");
        let big = fs::File::create(directory.join("big")).expect("file");
        big.set_len(MAX_BYTES).expect("size");
        assert!(matches!(locate(&homes, "review"), Err(SkillError::TooLarge)));
        fs::remove_file(directory.join("big")).expect("remove");
        let socket = std::os::unix::net::UnixListener::bind(directory.join("socket")).expect("socket");
        assert!(matches!(locate(&homes, "review"), Err(SkillError::Special(_))));
        drop(socket);
    }
}
