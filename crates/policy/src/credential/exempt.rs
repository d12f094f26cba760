//! The parts of a request's head in which certain credentials are not reported as findings: parameters of pre-signed
//! links, and the agent's own credentials on a route with `pass_credentials`.
//!
//! A pre-signed link contains the id of an access key and a signature. Neither of them lets its holder sign another
//! request, so a finding in such a link would stop downloads without protecting a secret. Only the exact form of such a
//! parameter is exempt, so that the parameter cannot carry another credential. A known secret in such a parameter is
//! always a finding.

use std::ops::Range;

use percent_encoding::percent_decode_str;

use super::strip;

/// The findings that are exempt in one part of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exempt {
    /// All credentials, except credentials that the agent must never send. The user allowed the agent to send its own
    /// credentials in this header or query key.
    OwnCredential,
    /// Matches of token patterns in a link that an allowed host sent to the agent.
    IssuedLink,
    /// Matches of the token patterns with these ids.
    Rules(&'static [&'static str]),
}

/// The form that the value of a parameter must have.
type Form = fn(&str) -> bool;

/// A scheme of pre-signed links. All parameters are compared in lower case.
struct SignatureScheme {
    /// The parameters that a link has to have.
    required: &'static [(&'static str, Form)],
    /// The parameter with the exempt findings. This parameter is also one of the required parameters.
    exempt: &'static str,
    rules: &'static [&'static str],
}

const SCHEMES: &[SignatureScheme] = &[
    // AWS Signature Version 4 in the query, which other stores also use (Cloudflare R2, MinIO, Backblaze).
    SignatureScheme {
        required: &[
            ("x-amz-algorithm", |value| value.starts_with("AWS4-")),
            ("x-amz-credential", is_aws_scope),
            ("x-amz-signature", |value| is_hex(value, 64)),
        ],
        exempt: "x-amz-credential",
        rules: &["aws-access-key-id"],
    },
    // AWS Signature Version 2, and CloudFront's predecessor.
    SignatureScheme {
        required: &[("awsaccesskeyid", is_key_id), ("signature", is_signature), ("expires", is_number)],
        exempt: "awsaccesskeyid",
        rules: &["aws-access-key-id"],
    },
    // Alibaba Cloud OSS, version 1.
    SignatureScheme {
        required: &[("ossaccesskeyid", is_key_id), ("signature", is_signature), ("expires", is_number)],
        exempt: "ossaccesskeyid",
        rules: &["alibaba-access-key-id"],
    },
    // Tencent Cloud COS.
    SignatureScheme {
        required: &[("q-ak", is_key_id), ("q-signature", |value| is_hex(value, 40))],
        exempt: "q-ak",
        rules: &["tencent-secret-id"],
    },
    // Azure Storage, service and account SAS.
    SignatureScheme {
        required: &[("sv", is_date), ("sig", is_signature), ("se", |value| !value.is_empty())],
        exempt: "sig",
        rules: &["azure-sas-signature"],
    },
    // Azure Storage, a SAS with a stored access policy.
    SignatureScheme {
        required: &[("sv", is_date), ("sig", is_signature), ("si", |value| !value.is_empty())],
        exempt: "sig",
        rules: &["azure-sas-signature"],
    },
];

/// Returns the findings that are exempt at the bytes `at` of `query` (canonical). `passes_credentials` is the route's
/// setting `pass_credentials`.
#[must_use]
pub fn in_query(query: &str, at: &Range<usize>, passes_credentials: bool) -> Option<Exempt> {
    let pair = pair_around(query, at)?;
    if passes_credentials && strip::is_credential_pair(pair) {
        return Some(Exempt::OwnCredential);
    }
    let key = pair.split('=').next().unwrap_or_default().to_ascii_lowercase();
    let scheme = SCHEMES.iter().find(|scheme| scheme.exempt == key && scheme.signs(query))?;
    Some(Exempt::Rules(scheme.rules))
}

/// Returns the findings that are exempt in the value of the header `name` (lower case).
#[must_use]
pub fn in_header(name: &str, passes_credentials: bool) -> Option<Exempt> {
    (passes_credentials && strip::is_credential_header(name)).then_some(Exempt::OwnCredential)
}

/// Returns the pair of a key and a value that contains all bytes of `at`.
fn pair_around<'q>(query: &'q str, at: &Range<usize>) -> Option<&'q str> {
    let before = query.get(..at.start)?;
    let start = before.rfind(['&', ';']).map_or(0, |separator| separator + 1);
    let end = query[start..].find(['&', ';']).map_or(query.len(), |separator| start + separator);
    (at.end <= end).then(|| &query[start..end])
}

impl SignatureScheme {
    /// Whether each required parameter occurs exactly once in `query`, in its form.
    fn signs(&self, query: &str) -> bool {
        self.required.iter().all(|(name, form)| {
            let pairs = query.split(['&', ';']).filter_map(|pair| pair.split_once('='));
            let mut values = pairs.filter(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value);
            match (values.next(), values.next()) {
                // In these values, a `+` is part of the signature and does not encode a space.
                (Some(value), None) => {
                    percent_decode_str(value).decode_utf8().is_ok_and(|value| form(&value))
                }
                _ => false,
            }
        })
    }
}

fn is_hex(value: &str, length: usize) -> bool {
    value.len() == length && value.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn is_number(value: &str) -> bool {
    (1..=20).contains(&value.len()) && value.bytes().all(|byte| byte.is_ascii_digit())
}

/// Whether the value has the form of an Azure service version, for example `2018-11-09`.
fn is_date(value: &str) -> bool {
    value.len() == 10 && value.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-')
}

/// Whether the value has the form of an HMAC-SHA1 or HMAC-SHA256 in base64.
fn is_signature(value: &str) -> bool {
    let body = value.trim_end_matches('=');
    let is_digit = |byte: u8| byte.is_ascii_alphanumeric() || b"+/-_".contains(&byte);
    matches!((body.len(), value.len()), (27, 28) | (43, 44)) && body.bytes().all(is_digit)
}

fn is_key_id(value: &str) -> bool {
    (12..=40).contains(&value.len()) && value.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

/// Whether the value has the form of an AWS credential scope: `KEY/20260131/us-east-1/s3/aws4_request`.
fn is_aws_scope(value: &str) -> bool {
    let word = |part: &str| {
        (1..=32).contains(&part.len())
            && part.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
    };
    let parts: Vec<&str> = value.split('/').collect();
    match parts[..] {
        [key, date, region, service, "aws4_request"] => {
            is_key_id(key) && date.len() == 8 && is_number(date) && word(region) && word(service)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HEX: &str = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";
    const SIG: &str = "Zm9vYmFyYmF6cXV4MTIzNDU2Nzg5MGFiY2RlZmdoaWo%3D";

    fn exempt(query: &str, word: &str, passes: bool) -> Option<Exempt> {
        let at = query.find(word).expect(word);
        in_query(query, &(at..at + word.len()), passes)
    }

    #[test]
    fn exempts_the_parameters_of_signature_schemes_only() {
        let scope = "%2F20261124%2Fauto%2Fs3%2Faws4_request";
        let aws = format!(
            "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AKEYIDAKEYID1234{scope}&X-Amz-Signature={HEX}"
        );
        let key = "AKEYIDAKEYID1234";
        let sas = format!("sv=2018-11-09&se=2026&sig={SIG}");
        for (query, word, is_exempt) in [
            (aws.clone(), key, true),
            (aws.replace("%2F", "/"), key, true),
            (aws.clone(), HEX, false),
            (aws.replace(HEX, "short"), key, false),
            (aws.replace("aws4_request", "other"), key, false),
            (format!("{aws}&a=1"), "a=1", false),
            (format!("{aws}&x-amz-credential=twice"), key, false),
            (format!("AWSAccessKeyId={key}&Expires=1&Signature=vjbyPxybdZaNmGa%2ByT272YEAiv4%3D"), key, true),
            (format!("AWSAccessKeyId={key}&Expires=1"), key, false),
            (format!("OSSAccessKeyId={key}&Expires=1&Signature=vjbyPxybdZaNmGa+yT272YEAiv4="), key, true),
            (format!("q-ak={key}&q-signature={}", &HEX[..40]), key, true),
            (sas.clone(), SIG, true),
            (sas.replace("se=2026", "si=policy"), SIG, true),
            (format!("sig={SIG}"), SIG, false),
            (sas.clone(), "2026&sig", false),
        ] {
            let rules = exempt(&query, word, false);
            assert_eq!(matches!(rules, Some(Exempt::Rules(_))), is_exempt, "{word} in {query}");
        }
        assert_eq!(exempt("a=1&api_key=mine", "mine", true), Some(Exempt::OwnCredential));
        assert_eq!(exempt("a=1&api_key=mine", "mine", false), None);
        assert_eq!(in_header("authorization", true), Some(Exempt::OwnCredential));
        assert_eq!((in_header("authorization", false), in_header("x-note", true)), (None, None));
    }

    proptest! {
        #[test]
        fn no_query_panics(query in "[a-z&;=%+ü]{0,40}", start in 0_usize..50, length in 0_usize..20) {
            let _ = in_query(&query, &(start..start + length), true);
        }
    }
}
