//! Loads the user's rules for the scanner from `$BOTTLE_HOME/rules/*.toml`.
//!
//! The files have the format of gitleaks' configuration. The files are parsed before a bottle is started, so that an
//! error is reported with its position. A rule that cannot be used is left out, and the user gets a warning. At launch
//! the files are sent to the sidecars, together with the files that they extend. Projects cannot add rules.

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};

use bottle_protocol::session::bundle::RuleFile;
use bottle_scan::{BadRuleFile, Remarks, RuleFiles};

use super::files::FileError;
use super::{Host, plain_file};

/// The maximum number of rules files, because every launch sends all of them. A larger number of files is an error.
const MAX_FILES: usize = 64;

/// The maximum total size of the rules files in bytes. A larger total size is an error. The limit is eight times the
/// size of the longest published list of rules.
const MAX_BYTES: u64 = bottle_scan::MAX_RULE_FILE as u64;

/// The maximum size of all rules files in the message to the sidecars, in bytes. The message also contains the root
/// certificates.
const MAX_PACKED: usize = 512 << 10;

/// The user's rules for the scanner.
#[derive(Debug, Default)]
pub struct ScannerRules {
    /// The files that are sent to the sidecars, sorted by name.
    pub files: Vec<RuleFile>,
    /// The parsed rules.
    pub rules: RuleFiles,
}

/// Why the rules cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ScannerRulesError {
    /// A file or the directory exists but cannot be read.
    #[error(transparent)]
    Unreadable(FileError),
    /// There are too many files, or they are too large.
    #[error(
        "{} contains more than {MAX_FILES} rule files, or more than {} MiB of rules ({} KiB compressed)",
        .0.display(),
        MAX_BYTES >> 20,
        MAX_PACKED >> 10
    )]
    TooLarge(PathBuf),
    /// A file is not valid.
    #[error("{}/{error}", directory.display())]
    Wrong {
        /// The path of the directory `rules`.
        directory: PathBuf,
        /// The name of the file, the line and the problem.
        error: BadRuleFile,
    },
}

impl ScannerRulesError {
    /// Returns what the user can do next.
    #[must_use]
    pub fn hint(&self) -> &str {
        match self {
            Self::Unreadable(error) if error.source.kind() == io::ErrorKind::InvalidData => {
                "save the rule file as UTF-8 text"
            }
            Self::Unreadable(error) => error.hint(),
            Self::TooLarge(_) => {
                "remove unneeded rules: more than 120 kinds of credentials are detected without any"
            }
            Self::Wrong { .. } => {
                "correct that line, or move the file away; see `bottle help routes` for the format"
            }
        }
    }
}

impl ScannerRules {
    /// Loads the rules from this user's `$BOTTLE_HOME`. If the directory `rules` does not exist, there are no rules. A
    /// file in this directory may extend a file outside of it. A relative path of an extended file starts at the
    /// directory `rules`.
    ///
    /// # Errors
    /// Returns [`ScannerRulesError`], which names the file and, if known, the line.
    pub fn load(host: &Host) -> Result<Self, ScannerRulesError> {
        let directory = host.home.join("rules");
        let mut files = Vec::new();
        let mut remaining = MAX_BYTES;
        let mut waiting: VecDeque<String> = names(&directory)?.into();
        while let Some(name) = waiting.pop_front() {
            let path = directory.join(&name);
            let unreadable = |source| ScannerRulesError::Unreadable(FileError::read(&path, source));
            let too_large = || ScannerRulesError::TooLarge(directory.clone());
            let real = path.canonicalize().map_err(unreadable)?;
            let bytes = plain_file::read(&real, remaining).map_err(unreadable)?;
            remaining = remaining.checked_sub(bytes.len() as u64).ok_or_else(too_large)?;
            let text = String::from_utf8(bytes).map_err(|error| {
                unreadable(io::Error::new(io::ErrorKind::InvalidData, error.utf8_error()))
            })?;
            let extended = RuleFiles::extended_path(&text).filter(|path| {
                *path != name
                    && !waiting.contains(path)
                    && files.iter().all(|file: &RuleFile| file.name != *path)
            });
            waiting.extend(extended);
            files.push(RuleFile { name, text });
            if files.len() > MAX_FILES {
                return Err(too_large());
            }
        }
        let is_long = MAX_BYTES - remaining > MAX_PACKED as u64;
        if is_long && serde_json::to_vec(&files).map_or(usize::MAX, |packed| packed.len()) > MAX_PACKED {
            return Err(ScannerRulesError::TooLarge(directory));
        }
        let texts = files.iter().map(|file| (file.name.as_str(), file.text.as_str()));
        let rules = RuleFiles::parse(texts).map_err(|error| ScannerRulesError::Wrong { directory, error })?;
        Ok(Self { files, rules })
    }

    /// Returns notes about the parts of files that are ignored, as `FILE: note`.
    pub fn notes(&self) -> impl Iterator<Item = String> {
        self.remarks(|remarks| &remarks.notes)
    }

    /// Returns warnings about rules and other parts that cannot be used and are left out, as `FILE: warning`.
    pub fn warnings(&self) -> impl Iterator<Item = String> {
        self.remarks(|remarks| &remarks.warnings)
    }

    fn remarks(&self, of: fn(&Remarks) -> &Vec<String>) -> impl Iterator<Item = String> {
        let remarks = self.files.iter().zip(self.rules.remarks());
        remarks.flat_map(move |(file, remarks)| {
            of(remarks).iter().map(move |text| format!("{}: {text}", file.name))
        })
    }
}

/// Returns the sorted names of the files in `directory` that end in `.toml`. Hidden files are left out.
fn names(directory: &Path) -> Result<Vec<String>, ScannerRulesError> {
    let unreadable = |source| ScannerRulesError::Unreadable(FileError::read(directory, source));
    let entries = match directory.read_dir() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(unreadable)?,
    };
    let mut names = Vec::new();
    for entry in entries {
        let name = entry.map_err(unreadable)?.file_name();
        let toml = Path::new(&name).extension().is_some_and(|extension| extension == "toml");
        if toml && !name.to_string_lossy().starts_with('.') {
            names.push(
                name.into_string()
                    .map_err(|_| unreadable(io::Error::other("a file name in it is not UTF-8")))?,
            );
        }
    }
    names.sort();
    Ok(names)
}
