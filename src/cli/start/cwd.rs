//! The value of `--cwd`: how much of the working directory a bottle gets, or the path of another directory.

use std::path::PathBuf;

use bottle_host::Host;
use bottle_lib::launch::start::CopyIn;
use clap_complete::{ArgValueCandidates, CompletionCandidate};

use crate::console::error::CliError;
use crate::console::output::one_line;

/// The names of the modes of `--cwd`.
const MODES: [&str; 3] = ["tracked", "all", "live"];

/// The value of `--cwd`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Cwd {
    /// The working directory, in this mode.
    Here(CopyIn),
    /// The directory at this path, in the mode [`CopyIn::Tracked`].
    Directory(PathBuf),
}

impl Cwd {
    /// Completes the names of the modes.
    pub(super) fn candidates() -> ArgValueCandidates {
        ArgValueCandidates::new(|| MODES.into_iter().map(CompletionCandidate::new).collect())
    }

    /// Parses the value. The path of a directory must contain a slash (or be `.` or `..`), so that it cannot be
    /// confused with a mode.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        match text {
            "tracked" => Ok(Self::Here(CopyIn::Tracked)),
            "all" => Ok(Self::Here(CopyIn::All)),
            "live" => Ok(Self::Here(CopyIn::Live)),
            "." | ".." => Ok(Self::Directory(text.into())),
            path if path.contains('/') => Ok(Self::Directory(path.into())),
            _ => Err(format!("use {}, or a directory with a slash, as in `./{text}`", MODES.join(", "))),
        }
    }

    pub(super) fn mode(&self) -> CopyIn {
        match self {
            Self::Here(mode) => *mode,
            Self::Directory(_) => CopyIn::Tracked,
        }
    }

    /// Returns a host whose working directory is the named directory. The command then uses the agents and the
    /// repository of that directory.
    ///
    /// # Errors
    /// Returns an error if the path is not a directory.
    pub(super) fn enter(&self, host: &Host) -> Result<Host, CliError> {
        let Self::Directory(path) = self else { return Ok(host.clone()) };
        let directory = host.cwd.join(path);
        let cwd = directory.canonicalize().map_err(|error| {
            CliError::path("copy", path, error).hint("`--cwd=./PATH` names a directory that exists")
        })?;
        if !cwd.is_dir() {
            let shown = one_line(&directory.display().to_string());
            return Err(CliError::usage(format!("cannot copy {shown}: it is no directory"))
                .about("--cwd")
                .hint("`bottle cp` copies a file into a bottle"));
        }
        Ok(Host { cwd, ..host.clone() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_has_a_slash() {
        for (text, parsed) in [
            ("all", Ok(Cwd::Here(CopyIn::All))),
            ("live", Ok(Cwd::Here(CopyIn::Live))),
            ("./live", Ok(Cwd::Directory("./live".into()))),
            ("live/", Ok(Cwd::Directory("live/".into()))),
            ("/srv/all", Ok(Cwd::Directory("/srv/all".into()))),
            ("..", Ok(Cwd::Directory("..".into()))),
            ("src", Err("use tracked, all, live, or a directory with a slash, as in `./src`".to_owned())),
        ] {
            assert_eq!(Cwd::parse(text), parsed, "{text}");
        }
    }
}
