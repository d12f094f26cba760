//! Runs the user's editor: `$VISUAL`, else `$EDITOR`, else `vi`.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Write as _};
use std::path::PathBuf;
use std::process::Command;

use bottle_host::temporary::Temporary;
use bottle_host::{Host, files};

use super::error::CliError;

/// The maximum length of a text that is read back from the editor, in bytes. A longer text is an error.
const MAX_BYTES: u64 = 16 << 20;

/// A temporary copy of a file for the editor. The caller decides whether the copy replaces the original.
pub(crate) struct Draft {
    _directory: Temporary,
    path: PathBuf,
}

impl Draft {
    /// Creates a file with this name and text in a new temporary directory, which only this user can access.
    ///
    /// # Errors
    /// Returns an error if the file cannot be created.
    pub(crate) fn new(host: &Host, name: &str, text: &str) -> Result<Self, CliError> {
        let made = || -> io::Result<Self> {
            let directory = host.temporary("edit-")?;
            let path = directory.path().join(name);
            files::private_file().write(true).create_new(true).open(&path)?.write_all(text.as_bytes())?;
            Ok(Self { _directory: directory, path })
        };
        made().map_err(|error| CliError::cannot("create a copy to edit", error).about(name))
    }

    /// Opens the file in the editor. As in git, the value of `$VISUAL` or `$EDITOR` is a shell command, which gets
    /// the file as its argument.
    ///
    /// # Errors
    /// Returns an error if the editor cannot be started or exits with a non-zero code.
    pub(crate) fn edit(&self, host: &Host) -> Result<(), CliError> {
        let named = |name| host.env.get(OsStr::new(name)).filter(|editor| !editor.is_empty());
        let editor =
            ["VISUAL", "EDITOR"].into_iter().find_map(named).map_or_else(|| "vi".into(), Clone::clone);
        let shown = editor.to_string_lossy().into_owned();
        let failed = |why: String| {
            CliError::failed(why)
                .about(&shown)
                .hint("set EDITOR to the editor you like, as in `export EDITOR=nano`")
        };
        let mut words = editor.clone();
        words.push(" \"$@\"");
        let status = Command::new("/bin/sh")
            .arg("-c")
            .arg(words)
            .arg(editor)
            .arg(&self.path)
            .status()
            .map_err(|error| failed(format!("cannot start {shown}: {error}")))?;
        if status.success() { Ok(()) } else { Err(failed(format!("the editor failed: {status}"))) }
    }

    /// Returns the edited text.
    ///
    /// # Errors
    /// Returns an error if the file is missing, is not UTF-8, or is longer than the limit.
    pub(crate) fn read(&self) -> Result<String, CliError> {
        let read = || -> io::Result<String> {
            let mut text = String::new();
            let length = File::open(&self.path)?.take(MAX_BYTES + 1).read_to_string(&mut text)?;
            if length as u64 > MAX_BYTES { Err(io::Error::other("it is too long")) } else { Ok(text) }
        };
        read().map_err(|error| CliError::path("read the edited copy", &self.path, error))
    }
}
