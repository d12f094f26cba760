//! Renders a [`Gain`] (an added permission) as text for the user, who approves or rejects it.

use std::fmt;

use super::{Gain, What};
use crate::route::{HeaderValueMatch, PathMatch, RequestMatch};

impl fmt::Display for Gain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.host, self.what)?;
        match (&self.what, &self.credential) {
            (What::Credential { .. }, _) | (_, None) => Ok(()),
            (_, Some(slot)) => write!(f, ", with the credential `{}`", slot.escape_debug()),
        }
    }
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host => f.write_str("a new host"),
            Self::Port(80) => f.write_str("port 80, plain HTTP"),
            Self::Port(port) => write!(f, "port {port}"),
            Self::Requests(entry) => write!(f, "{}", Entry(entry)),
            Self::EveryRequest => f.write_str("every request"),
            Self::GitFetch => f.write_str("git clone and fetch"),
            Self::Credential { slot, header } => {
                write!(f, "the credential `{}` in `{}`", slot.escape_debug(), header.escape_debug())
            }
            Self::AgentCredentials => f.write_str("the agent's own credentials pass"),
            Self::TlsPassthrough => f.write_str("TLS passes through uninspected"),
            Self::PrivateAddresses => f.write_str("private addresses"),
            Self::Destination(Some(to)) => write!(f, "connections go to {to}"),
            Self::Destination(None) => f.write_str("connections go where the name resolves"),
            Self::WebSockets => f.write_str("WebSockets"),
            Self::Scanning => f.write_str("changed scanning"),
        }
    }
}

/// Renders a request condition, for example `GET, POST of /v1/*, /models with accept: application/json`.
struct Entry<'a>(&'a RequestMatch);

impl fmt::Display for Entry<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RequestMatch { paths, methods, headers } = self.0;
        let methods = if methods.is_empty() { "every method".to_owned() } else { methods.join(", ") };
        let paths = if paths.is_empty() {
            "every path".to_owned()
        } else {
            paths.iter().map(path).collect::<Vec<_>>().join(", ")
        };
        write!(f, "{methods} of {paths}")?;
        for (index, header) in headers.iter().enumerate() {
            let joint = if index == 0 { "with" } else { "and" };
            let value = match &header.value {
                HeaderValueMatch::Exact(value) => value.escape_debug().to_string(),
                HeaderValueMatch::Regex(pattern) => pattern.to_string(),
            };
            write!(f, " {joint} {}: {value}", header.name)?;
        }
        Ok(())
    }
}

fn path(path: &PathMatch) -> String {
    match path {
        PathMatch::Exact(value) => value.escape_debug().to_string(),
        PathMatch::Prefix(value) => format!("{}/*", value.trim_end_matches('/').escape_debug()),
        PathMatch::Regex(pattern) => pattern.to_string(),
    }
}
