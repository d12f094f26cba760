//! Step 1 of [`decide`](super::decide()): checks that all host names in a request agree.

use std::borrow::Cow;

use http::header::HOST;

use super::{Ingress, Refusal, RequestFacts};
use crate::canonical::{self, Authority, BadHost};

/// Returns the host that the CONNECT target, SNI, `:authority` and every `Host` agree on, and its port. Absent
/// names are ignored. If a name contains a port, that port must equal the port of the connection.
pub(super) fn agreed_host<'f>(facts: &RequestFacts<'f>) -> Result<(Cow<'f, str>, u16), Box<Refusal>> {
    let mut names = Names { host: None, port: None };
    match facts.ingress {
        Ingress::Transparent { port } => names.port = Some(port),
        Ingress::Connect { authority } => {
            names.authority("the CONNECT target", authority)?;
            if names.port.is_none() {
                return Err(Refusal::authority(authority, "the CONNECT target names no port").into());
            }
        }
        Ingress::Absolute => {}
    }
    if let Some(authority) = facts.authority {
        names.authority("the request's authority", authority)?;
        // A URL without a port means the default port of its scheme. A `Host` with another port is then a
        // mismatch.
        names.port.get_or_insert(facts.scheme.default_port());
    }
    if let Some(sni) = facts.sni {
        names.host("the TLS server name", sni, canonical::host(sni))?;
    }
    for value in facts.headers.get_all(HOST) {
        let value = value.to_str().map_err(|_| Refusal::authority("", "`Host` is not ASCII"))?;
        names.authority("`Host`", value)?;
    }
    match names.host {
        Some(host) => Ok((host, names.port.unwrap_or(facts.scheme.default_port()))),
        None => Err(Refusal::authority("", "the request names no host").into()),
    }
}

/// The host and port of the names that were checked so far.
struct Names<'f> {
    host: Option<Cow<'f, str>>,
    port: Option<u16>,
}

impl<'f> Names<'f> {
    fn authority(&mut self, source: &str, raw: &'f str) -> Result<(), Box<Refusal>> {
        let (host, port) = match canonical::authority(raw) {
            Ok(Authority { host, port }) => (Ok(host), port),
            Err(error) => (Err(error), None),
        };
        self.host(source, raw, host)?;
        match (self.port, port) {
            (Some(known), Some(port)) if known != port => {
                let why = format!("{source} names port {port} on a connection to port {known}");
                Err(Refusal::authority(raw, &why).into())
            }
            _ => {
                self.port = self.port.or(port);
                Ok(())
            }
        }
    }

    fn host(
        &mut self,
        source: &str,
        raw: &str,
        read: Result<Cow<'f, str>, BadHost>,
    ) -> Result<(), Box<Refusal>> {
        let host =
            read.map_err(|error| Refusal::authority(raw, &format!("{source} names no host: {}", error.why)))?;
        match &self.host {
            Some(known) if *known != host => {
                let why = format!("{source} names `{host}` where the connection is to `{known}`");
                Err(Refusal::authority(known, &why).into())
            }
            Some(_) => Ok(()),
            None => {
                self.host = Some(host);
                Ok(())
            }
        }
    }
}
