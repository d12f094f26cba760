//! Loads and saves `$BOTTLE_HOME/secrets.yml`, which contains secret references for environment variables
//! that are not set.
//!
//! The file contains references, never values: `NAME: file:PATH`, `NAME: keychain:ITEM` or `NAME: cmd:COMMAND`. A user
//! adds an entry by typing a reference instead of a secret at the prompt.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow, bail};
use bottle_host::{Host, files};
use bottle_manifest::secret_ref::{BadSecretRef, SecretRef};
use bottle_text::yaml;

/// The first line of the file.
const HEADING: &str = "# References for secrets whose variables are not set. Never a secret itself.\n";

/// Secret references, by variable name.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct SavedReferences(BTreeMap<String, SecretRef>);

impl SavedReferences {
    /// Loads the references from the host's `$BOTTLE_HOME`. Returns no references if the file does not exist.
    ///
    /// # Errors
    /// When the file exists but is invalid. The error contains the path and the problem, not the file's values.
    pub(super) fn load(host: &Host) -> anyhow::Result<Self> {
        let path = path_of(host);
        Self::read(&path).with_context(|| path.display().to_string())
    }

    fn read(path: &Path) -> anyhow::Result<Self> {
        let mut text = String::new();
        match std::fs::File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            file => file?.take(yaml::MAX_DOCUMENT as u64 + 1).read_to_string(&mut text)?,
        };
        let written: BTreeMap<String, String> = yaml::from_str(&text).map_err(|error| {
            let at = error.at.map(|at| format!("{at}: ")).unwrap_or_default();
            anyhow!("{at}must be a map of NAME to `file:PATH`, `keychain:NAME` or `cmd:COMMAND`")
        })?;
        let mut references = BTreeMap::new();
        for (name, reference) in written {
            // References to variables are refused, because they could form a cycle.
            match reference.parse() {
                Ok(SecretRef::Variable(_)) => {
                    bail!("{name} must be `file:PATH`, `keychain:NAME` or `cmd:COMMAND`")
                }
                Ok(reference) => drop(references.insert(name, reference)),
                Err(why) => bail!("{name} {why}"),
            }
        }
        Ok(Self(references))
    }

    /// Returns the saved reference for a variable. `None` if no reference is saved.
    #[must_use]
    pub(super) fn get(&self, name: &str) -> Option<&SecretRef> {
        self.0.get(name)
    }

    /// Saves the reference for a variable, and replaces an existing reference. Returns the path of the file.
    ///
    /// # Errors
    /// When the file cannot be written. The file is then unchanged.
    pub(super) fn save(mut self, host: &Host, name: &str, reference: SecretRef) -> io::Result<PathBuf> {
        self.0.insert(name.to_owned(), reference);
        let path = path_of(host);
        files::create_private_directory(&host.home)?;
        let written: BTreeMap<&str, String> =
            self.0.iter().map(|(name, reference)| (name.as_str(), reference.to_string())).collect();
        let text = yaml::to_string(&written).map_err(io::Error::other)?;
        files::replace_durably(&path, |file| {
            file.write_all(HEADING.as_bytes())?;
            file.write_all(text.as_bytes())
        })?;
        Ok(path)
    }
}

/// Parses typed text as a secret reference. Returns `None` if the text has no reference prefix.
pub(super) fn parse_reference(typed: &str) -> Option<Result<SecretRef, BadSecretRef>> {
    let is_reference = ["file:", "keychain:", "cmd:"].iter().any(|prefix| typed.starts_with(prefix));
    is_reference.then(|| typed.trim().parse())
}

fn path_of(host: &Host) -> PathBuf {
    host.home.join("secrets.yml")
}
