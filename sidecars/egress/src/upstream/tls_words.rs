//! Describes TLS errors of servers, and what the user can do about each error.

use jiff::Timestamp;
use rustls::pki_types::UnixTime;
use rustls::{AlertDescription, CertificateError, Error, PeerIncompatible};

/// The most names of a certificate that a description lists.
const MAX_NAMES: usize = 3;

/// The most characters of a name that a description contains.
const MAX_NAME: usize = 80;

/// Describes why a certificate is not trusted.
pub(super) fn certificate(why: &CertificateError) -> String {
    use CertificateError as Why;
    match why {
        Why::UnknownIssuer => {
            "its issuer is not trusted; if the host is right, the user can add the certificate, or its issuer's, to \
             `egress.ca_bundle`"
                .to_owned()
        }
        Why::Expired => "it has expired; the host has to renew it".to_owned(),
        Why::ExpiredContext { not_after, .. } => {
            format!("it expired on {}; the host has to renew it, or this machine's clock is wrong", day(*not_after))
        }
        Why::NotValidYet => "it is not valid yet; this machine's clock may be wrong".to_owned(),
        Why::NotValidYetContext { not_before, .. } => {
            format!("it is valid from {} only; this machine's clock may be wrong", day(*not_before))
        }
        Why::NotValidForName => "it is for another name".to_owned(),
        Why::NotValidForNameContext { presented, .. } => format!(
            "it is {}; the route may need another `host`, with `connect_to` for the address",
            names(presented)
        ),
        Why::BadSignature => {
            "its signature is wrong: `egress.ca_bundle` may contain an old certificate of its issuer".to_owned()
        }
        Why::InvalidPurpose | Why::InvalidPurposeContext { .. } => {
            "it is not a certificate of a server; the host has to use another one".to_owned()
        }
        Why::Revoked => "it has been revoked; the host has to use another one".to_owned(),
        Why::Other(other) if is_ca(other) => {
            "it is an authority's own certificate; if the host is right, the user can add it to `egress.ca_bundle`"
                .to_owned()
        }
        other => format!("{other}; the host has to use another one"),
    }
}

fn is_ca(other: &rustls::OtherError) -> bool {
    matches!(other.0.downcast_ref(), Some(webpki::Error::CaUsedAsEndEntity))
}

/// Describes why a handshake failed. Returns `None` if rustls's own message is the better description.
pub(super) fn handshake(error: &Error) -> Option<&'static str> {
    Some(match error {
        Error::InvalidMessage(_) => {
            "it does not answer with TLS on this port; the route may need `ports: [80]` and `http://`, or another \
             `connect_to`"
        }
        Error::PeerIncompatible(PeerIncompatible::ServerDoesNotSupportTls12Or13)
        | Error::AlertReceived(AlertDescription::ProtocolVersion) => {
            "it supports no TLS 1.2 or 1.3, and the proxy uses no older version; the host has to be updated"
        }
        Error::AlertReceived(AlertDescription::HandshakeFailure | AlertDescription::InsufficientSecurity)
        | Error::PeerIncompatible(_) => {
            "it supports none of the proxy's cipher suites, or requires a client certificate, which the proxy does not \
             send; with `inspect: false`, the client connects with its own TLS"
        }
        Error::AlertReceived(
            AlertDescription::CertificateRequired
            | AlertDescription::BadCertificate
            | AlertDescription::UnknownCA,
        ) => {
            "it requires a client certificate, which the proxy does not send; with `inspect: false`, the client sends \
             its own"
        }
        Error::AlertReceived(AlertDescription::UnrecognisedName) => {
            "it does not serve this name; the `host` of the route or its `connect_to` may be wrong"
        }
        _ => return None,
    })
}

fn day(time: UnixTime) -> String {
    let time = i64::try_from(time.as_secs()).ok().and_then(|secs| Timestamp::from_second(secs).ok());
    time.map_or_else(|| "an unknown day".to_owned(), |time| time.strftime("%Y-%m-%d").to_string())
}

/// Lists the names of a certificate. The server controls this text, so only characters that a host name can contain are
/// shown.
fn names(presented: &[String]) -> String {
    let clean = |name: &String| -> String {
        // rustls writes a name as `DnsName("a.example")`.
        let name = name.split('"').nth(1).unwrap_or(name);
        let valid = |character: &char| character.is_ascii_alphanumeric() || ".-*:".contains(*character);
        name.chars().filter(valid).take(MAX_NAME).collect()
    };
    let shown: Vec<String> = presented.iter().take(MAX_NAMES).map(clean).collect();
    match (shown.as_slice(), presented.len().saturating_sub(MAX_NAMES)) {
        ([], _) => "for no name at all (it has no subjectAltName)".to_owned(),
        (_, 0) => format!("for {}", shown.join(", ")),
        (_, more) => format!("for {} and {more} more", shown.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rustls::InvalidMessage;
    use rustls::pki_types::ServerName;

    use super::*;

    #[test]
    fn names_the_defect_and_the_next_step() {
        let time = |secs| UnixTime::since_unix_epoch(Duration::from_secs(secs));
        let presented = |names: &[&str]| CertificateError::NotValidForNameContext {
            expected: ServerName::try_from("a.example.com").expect("name"),
            presented: names.iter().map(|name| (*name).to_owned()).collect(),
        };
        let expired = CertificateError::ExpiredContext { time: time(1 << 40), not_after: time(86_400) };
        for (why, words) in [
            (CertificateError::UnknownIssuer, "`egress.ca_bundle`"),
            (expired, "it expired on 1970-01-02"),
            (
                presented(&["DnsName(\"b.example.com\")", "DnsName(\"*.c\\n`d\")"]),
                "it is for b.example.com, *.cn",
            ),
            (presented(&["a", "b", "c", "d", "e"]), "it is for a, b, c and 2 more"),
            (presented(&[]), "no subjectAltName"),
        ] {
            let text = certificate(&why);
            assert!(text.contains(words) && text.contains(';'), "{text}");
        }
        for (error, words) in [
            (Error::InvalidMessage(InvalidMessage::InvalidContentType), "does not answer with TLS"),
            (Error::AlertReceived(AlertDescription::ProtocolVersion), "TLS 1.2"),
            (Error::AlertReceived(AlertDescription::HandshakeFailure), "cipher suites"),
            (Error::AlertReceived(AlertDescription::CertificateRequired), "client certificate"),
            (Error::AlertReceived(AlertDescription::UnrecognisedName), "this name"),
        ] {
            assert!(
                handshake(&error).is_some_and(|text| text.contains(words) && text.contains(';')),
                "{error}"
            );
        }
        assert_eq!(handshake(&Error::EncryptError), None);
    }
}
