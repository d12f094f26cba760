//! `$BOTTLE_HOME/rules/*.toml`: a user's own rules for what may not leave a bottle.
//!
//! In gitleaks' configuration format. They are read before anything starts, so that a wrong one is told with its
//! place, and again at launch, when their texts go to the guards. Nothing of a project is read.

use std::io;
use std::path::{Path, PathBuf};

use bottle_contract::session::bundle::RuleFile;
use bottle_scan::{BadRuleFile, RuleFiles};

use super::{Host, disk};
use crate::host::plain_file;

/// More files than this are refused: each is sent at every launch.
const MOST_FILES: usize = 64;

/// More bytes than this, of all files together, are refused. The longest list that is published has half of it.
const MOST_BYTES: u64 = 256 << 10;

/// The rules of this home.
#[derive(Debug, Default)]
pub struct OwnRules {
    /// The files as the guards are given them, by name.
    pub files: Vec<RuleFile>,
    /// The same, ready to run.
    pub rules: RuleFiles,
}

/// Rules that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OwnRulesError {
    /// A file or the folder is there and cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Unreadable {
        /// The file or folder.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// Too many files, or too long.
    #[error("{} holds more than {MOST_FILES} files of rules or more than {} KiB of them", .0.display(), MOST_BYTES >> 10)]
    TooLarge(PathBuf),
    /// A file says something that cannot be meant.
    #[error("{}/{error}", folder.display())]
    Wrong {
        /// The folder.
        folder: PathBuf,
        /// Which file, and what, with its line.
        error: BadRuleFile,
    },
}

impl OwnRulesError {
    /// What the user does next.
    #[must_use]
    pub fn hint(&self) -> &str {
        match self {
            Self::Unreadable { source, .. } if source.kind() == io::ErrorKind::InvalidData => {
                "a file of rules is text in UTF-8"
            }
            Self::Unreadable { source, .. } => disk::hint(source),
            Self::TooLarge(_) => {
                "leave out what is not needed: more than 120 kinds are looked for without any rule"
            }
            Self::Wrong { .. } => {
                "correct that line, or move the file away; `bottle help routes` says what is read"
            }
        }
    }
}

impl OwnRules {
    /// The rules of this home; none when it has no folder of them.
    ///
    /// # Errors
    /// [`OwnRulesError`], naming the file, and the line where there is one.
    pub fn load(host: &Host) -> Result<Self, OwnRulesError> {
        let folder = host.home.join("rules");
        let mut files = Vec::new();
        let mut left = MOST_BYTES;
        for name in names(&folder)? {
            let path = folder.join(&name);
            let unreadable = |source| OwnRulesError::Unreadable { path: path.clone(), source };
            let too_large = || OwnRulesError::TooLarge(folder.clone());
            let real = path.canonicalize().map_err(unreadable)?;
            let bytes = plain_file::read(&real, left).map_err(unreadable)?;
            left = left.checked_sub(bytes.len() as u64).ok_or_else(too_large)?;
            let text = String::from_utf8(bytes).map_err(|error| {
                unreadable(io::Error::new(io::ErrorKind::InvalidData, error.utf8_error()))
            })?;
            files.push(RuleFile { name, text });
            if files.len() > MOST_FILES {
                return Err(too_large());
            }
        }
        let texts = files.iter().map(|file| (file.name.as_str(), file.text.as_str()));
        let rules = RuleFiles::parse(texts).map_err(|error| OwnRulesError::Wrong { folder, error })?;
        Ok(Self { files, rules })
    }

    /// What is left out of each file, `FILE: what`.
    pub fn notes(&self) -> impl Iterator<Item = String> {
        let of = self.files.iter().zip(self.rules.notes());
        of.flat_map(|(file, notes)| notes.iter().map(move |note| format!("{}: {note}", file.name)))
    }
}

/// The names that end in `.toml`, sorted; hidden ones are editors' own.
fn names(folder: &Path) -> Result<Vec<String>, OwnRulesError> {
    let unreadable = |source| OwnRulesError::Unreadable { path: folder.to_owned(), source };
    let entries = match folder.read_dir() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(unreadable)?,
    };
    let mut names = Vec::new();
    for entry in entries {
        let name = entry.map_err(unreadable)?.file_name();
        let toml = Path::new(&name).extension().is_some_and(|extension| extension == "toml");
        if toml && !name.to_string_lossy().starts_with('.') {
            names.push(
                name.into_string().map_err(|_| unreadable(io::Error::other("a name in it is no UTF-8")))?,
            );
        }
    }
    names.sort();
    Ok(names)
}
