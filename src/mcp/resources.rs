//! The resources: `bottle://SLUG/log`, and `bottle://SLUG/files/PATH` for the files of a workspace.

use bottle_protocol::session::files::{FilePath, FileRequest, Read};
use percent_encoding::percent_decode_str;

use super::call::Call;
use super::requests::BottleRequest;

/// The MIME type of a log.
pub(super) const TEXT: &str = "text/plain";

/// The URI template of logs (RFC 6570).
pub(super) const LOG_TEMPLATE: &str = "bottle://{bottle}/log";

/// The URI template of files (RFC 6570).
pub(super) const FILE_TEMPLATE: &str = "bottle://{bottle}/files/{+path}";

/// The maximum number of bytes that are read from a file.
const FILE_MAX: u64 = 1 << 20;

/// The number of lines in the resource of a log.
const LINES: u64 = 200;

/// The part of a bottle that a resource shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Part {
    /// The agent's output.
    Log,
    /// A file of the workspace.
    File(String),
}

/// Returns the URI of a bottle's log.
pub(super) fn log_uri(slug: &str) -> String {
    format!("bottle://{slug}/log")
}

/// Parses the URI of a resource into the name of the bottle and the part of the bottle. Returns `None` if the URI is
/// not the URI of a resource.
pub(super) fn parse(uri: &str) -> Option<(String, Part)> {
    let (bottle, part) = uri.strip_prefix("bottle://")?.split_once('/')?;
    let part = match part.strip_prefix("files/") {
        None if part == "log" => Part::Log,
        Some(path) if !path.is_empty() => {
            Part::File(percent_decode_str(path).decode_utf8().ok()?.into_owned())
        }
        _ => return None,
    };
    Some((bottle.to_owned(), part))
}

impl Part {
    /// Returns the name of the tool that returns the same content.
    pub(super) fn tool(&self) -> &'static str {
        match self {
            Self::Log => "bottle_logs",
            Self::File(_) => "file_read",
        }
    }

    pub(super) fn call(&self) -> Call {
        match self {
            Self::Log => Call::bottle(BottleRequest::Log(LINES)),
            Self::File(path) => Call::files(FileRequest::Read(Read {
                path: FilePath::from(path),
                offset: 0,
                max: FILE_MAX,
                redact: true,
            })),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uri_names_a_bottle_and_a_part() {
        let file = |path: &str| Some(("one".to_owned(), Part::File(path.to_owned())));
        for (uri, parsed) in [
            ("bottle://one/log", Some(("one".to_owned(), Part::Log))),
            ("bottle://one/files/src/main.rs", file("src/main.rs")),
            ("bottle://one/files/a%20b", file("a b")),
            ("bottle://one/files/../x", file("../x")),
            ("bottle://one/files/", None),
            ("bottle://one/files/%ff", None),
            ("bottle://one", None),
            ("bottle://one/logs", None),
            ("file:///etc/passwd", None),
            ("", None),
        ] {
            assert_eq!(parse(uri), parsed, "{uri}");
        }
    }
}
