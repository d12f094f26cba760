//! `$BOTTLE_HOME/secrets.yml`: for a variable that is not set, where its value is read from instead.
//!
//! References only, never a value: `NAME: file:PATH` or `NAME: cmd:COMMAND`. A user makes an entry by answering
//! the question for a secret with a reference instead of the secret.

use std::collections::BTreeMap;
use std::fs::DirBuilder;
use std::io::{self, Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;

use bottle_contract::yaml;

use crate::host::{Host, files};
use crate::manifest::secret_ref::SecretRef;

/// The file's first line.
const HEADING: &str =
    "# Where secrets are read from while their variables are not set. Never a secret itself.\n";

/// References by the variable's name.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Kept(BTreeMap<String, SecretRef>);

impl Kept {
    /// Those of this home; none when there is no file.
    ///
    /// # Errors
    /// When the file is there and cannot be used, naming it and never quoting a value of it.
    pub(super) fn load(host: &Host) -> Result<Self, String> {
        let path = path_of(host);
        let fault = |why: String| format!("{}: {why}", path.display());
        let mut text = String::new();
        match std::fs::File::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => return Err(fault(error.to_string())),
            Ok(file) => file
                .take(yaml::MAX_DOCUMENT as u64 + 1)
                .read_to_string(&mut text)
                .map_err(|error| fault(error.to_string()))?,
        };
        let written: BTreeMap<String, String> = yaml::from_str(&text).map_err(|error| {
            let at = error.at.map(|at| format!("{at}: ")).unwrap_or_default();
            fault(format!("{at}it has to be a map of NAME to `file:PATH` or `cmd:COMMAND`"))
        })?;
        let mut kept = BTreeMap::new();
        for (name, reference) in written {
            // A variable that stands for another is how a loop begins.
            match reference.parse() {
                Ok(SecretRef::Variable(_)) => {
                    return Err(fault(format!("{name} has to be `file:PATH` or `cmd:COMMAND`")));
                }
                Ok(reference) => drop(kept.insert(name, reference)),
                Err(why) => return Err(fault(format!("{name} {why}"))),
            }
        }
        Ok(Self(kept))
    }

    /// Where the value of this variable is read from.
    #[must_use]
    pub(super) fn get(&self, name: &str) -> Option<&SecretRef> {
        self.0.get(name)
    }

    /// Keeps a reference for this variable, in place of one that was kept before.
    ///
    /// # Errors
    /// When the file cannot be written; what was there stays.
    pub(super) fn keep(mut self, host: &Host, name: &str, reference: SecretRef) -> io::Result<PathBuf> {
        self.0.insert(name.to_owned(), reference);
        let path = path_of(host);
        DirBuilder::new().recursive(true).mode(0o700).create(&host.home)?;
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

/// What was typed, when it is a reference and no secret.
pub(super) fn reference(typed: &str) -> Option<Result<SecretRef, String>> {
    let is = typed.starts_with("file:") || typed.starts_with("cmd:");
    is.then(|| typed.trim().parse::<SecretRef>().map_err(|error| error.to_string()))
}

fn path_of(host: &Host) -> PathBuf {
    host.home.join("secrets.yml")
}
