//! Reads codex's login on this machine.
//!
//! Codex writes the login to the file `auth.json`. After a ChatGPT login, `auth.json` contains tokens. After a login
//! with an API key, `auth.json` contains the key.

use std::io;
use std::path::Path;

use anyhow::anyhow;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bottle_policy::secret::Secret;
use jiff::Timestamp;
use serde::Deserialize;

use super::{SECRET_MAX, SecretError, read_bounded, unreadable_with_hint};
use crate::{CodexPart, SecretNeed};

/// The hint for a missing or expired login.
const LOG_IN: &str = "log in on this machine: `codex login`";

/// The fields of `auth.json` that this module uses.
#[derive(Deserialize)]
struct Login {
    tokens: Option<Tokens>,
}

#[derive(Deserialize)]
struct Tokens {
    access_token: Option<String>,
    account_id: Option<String>,
}

/// The claim of a token that contains the token's expiry.
#[derive(Deserialize)]
struct Claims {
    exp: Option<i64>,
}

/// Reads one value of the ChatGPT login in `file`: the access token or the account's id.
///
/// # Errors
/// [`SecretError`] when there is no login, when the login is not a ChatGPT login, when the value is missing, or when
/// the access token has expired.
pub(super) fn part(file: &Path, part: CodexPart, need: &SecretNeed) -> Result<Secret, SecretError> {
    let fault =
        |why: anyhow::Error, hint| unreadable_with_hint(need, why.context(file.display().to_string()), hint);
    let (bytes, _) = read_bounded(file).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => fault(anyhow!("codex is not logged in on this machine"), LOG_IN),
        _ => fault(error.into(), LOG_IN),
    })?;
    if bytes.len() > SECRET_MAX {
        return Err(fault(anyhow!("more than {SECRET_MAX} bytes"), LOG_IN));
    }
    // The error contains neither a position in the file nor its text, because the file is secret.
    let login: Login =
        serde_json::from_slice(&bytes).map_err(|_| fault(anyhow!("not a codex login"), LOG_IN))?;
    let Some(tokens) = login.tokens else {
        let hint = "set the key in the bottle instead: `agent_provider: {auth_token: CODEX_API_KEY}`";
        return Err(fault(anyhow!("codex is logged in by a key, not by ChatGPT"), hint));
    };
    let found = match part {
        CodexPart::AccessToken => tokens.access_token,
        CodexPart::AccountId => tokens.account_id,
    };
    let found = found.filter(|found| !found.is_empty()).map(Secret::new);
    let found = found.ok_or_else(|| fault(anyhow!("the login is incomplete"), LOG_IN))?;
    if part == CodexPart::AccessToken && expiry(&found).is_some_and(|end| end <= Timestamp::now()) {
        let hint = "run `codex` once on this machine, which renews it, or log in again: `codex login`";
        return Err(fault(anyhow!("the login has expired"), hint));
    }
    Ok(found)
}

/// Returns the time at which the token expires. `None` if the token never expires, or if its expiry cannot be read.
fn expiry(token: &Secret) -> Option<Timestamp> {
    let claims = token.expose().split('.').nth(1)?;
    let claims: Claims = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(claims).ok()?).ok()?;
    Timestamp::from_second(claims.exp?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SecretSource;

    fn read(text: &str, wanted: CodexPart) -> Result<String, String> {
        let directory = tempfile::tempdir().expect("directory");
        let file = directory.path().join("auth.json");
        std::fs::write(&file, text).expect("written");
        let source = SecretSource::CodexLogin { file: file.clone(), part: wanted };
        let need = SecretNeed { id: "x".to_owned(), source, purpose: "the login".to_owned(), form: None };
        let found = part(&file, wanted, &need).map(|secret| secret.expose().to_owned());
        found.map_err(|error| {
            format!("{}; {}", bottle_host::causes::one_line(&error), error.hint().unwrap_or_default())
        })
    }

    fn token(end: i64) -> String {
        format!("e30.{}.sig", URL_SAFE_NO_PAD.encode(format!("{{\"exp\":{end}}}")))
    }

    #[test]
    fn reads_each_part_of_a_chatgpt_login() {
        let good = token(4_000_000_000);
        let text = format!(
            r#"{{"auth_mode":"chatgpt","OPENAI_API_KEY":null,"last_refresh":"2026-01-01T00:00:00Z",
                "tokens":{{"id_token":"i","access_token":"{good}","refresh_token":"r","account_id":"acc"}}}}"#
        );
        assert_eq!(read(&text, CodexPart::AccessToken), Ok(good));
        assert_eq!(read(&text, CodexPart::AccountId), Ok("acc".to_owned()));
        let opaque = r#"{"tokens":{"access_token":"hunter2"}}"#;
        assert_eq!(read(opaque, CodexPart::AccessToken), Ok("hunter2".to_owned()));
    }

    #[test]
    fn refuses_unusable_logins_without_showing_them() {
        let old = format!(r#"{{"tokens":{{"access_token":"{}","x":"hunter2"}}}}"#, token(1));
        let large = format!("{{\"x\":\"hunter2{}\"}}", "x".repeat(SECRET_MAX));
        for (text, why) in [
            (r#"{"OPENAI_API_KEY":"hunter2","tokens":null}"#, "by a key"),
            (r#"{"OPENAI_API_KEY":"hunter2"}"#, "auth_token"),
            (r#"{"tokens":{"id_token":"hunter2"}}"#, "incomplete"),
            (r#"{"tokens":"hunter2"}"#, "not a codex login"),
            ("hunter2", "codex login"),
            (old.as_str(), "expired"),
            (large.as_str(), "more than"),
        ] {
            let error = read(text, CodexPart::AccessToken).expect_err(why);
            assert!(error.contains(why) && !error.contains("hunter2"), "{error}");
        }
    }
}
