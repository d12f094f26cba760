//! Generates secrets of twelve families in the formats of their issuers. None of these secrets is in use.

use anyhow::Result;
use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use rcgen::KeyPair;

use crate::dice::{ADDRESS, BASE32, BASE64, DIGITS, Dice, WORD};

/// The names and values that together form one secret.
pub(crate) type Values = Vec<(&'static str, String)>;

/// A kind of secret.
pub(crate) struct Family {
    pub(crate) name: &'static str,
    make: fn(&mut Dice) -> Result<Values>,
}

impl Family {
    /// Generates a new secret of this family.
    pub(crate) fn make(&self, dice: &mut Dice) -> Result<Values> {
        (self.make)(dice)
    }
}

pub(crate) const FAMILIES: [Family; 12] = [
    Family { name: "anthropic", make: anthropic },
    Family { name: "aws", make: aws },
    Family { name: "database", make: database },
    Family { name: "github", make: github },
    Family { name: "gitlab", make: gitlab },
    Family { name: "google", make: google },
    Family { name: "jwt", make: jwt },
    Family { name: "npm", make: npm },
    Family { name: "privatekey", make: private_key },
    Family { name: "pypi", make: pypi },
    Family { name: "slack", make: slack },
    Family { name: "stripe", make: stripe },
];

fn one(name: &'static str, value: String) -> Result<Values> {
    Ok(vec![(name, value)])
}

fn anthropic(dice: &mut Dice) -> Result<Values> {
    one("anthropic_api_key", format!("sk-ant-api03-{}AA", dice.text(ADDRESS, 93)))
}

fn aws(dice: &mut Dice) -> Result<Values> {
    let id = format!("AKIA{}", dice.text(BASE32, 16));
    Ok(vec![("aws_access_key_id", id), ("aws_secret_access_key", dice.text(BASE64, 40))])
}

fn database(dice: &mut Dice) -> Result<Values> {
    one("database_url", format!("postgres://app:{}@db1.internal.net:5432/app", dice.text(WORD, 20)))
}

/// Generates a token that ends with a checksum of six characters.
fn checked(dice: &mut Dice, prefix: &str) -> String {
    let body = dice.text(WORD, 30);
    let mut sum = flate2::Crc::new();
    sum.update(body.as_bytes());
    let mut number = sum.sum();
    let mut digits = [b'0'; 6];
    for digit in digits.iter_mut().rev() {
        *digit = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"[(number % 62) as usize];
        number /= 62;
    }
    format!("{prefix}{body}{}", String::from_utf8_lossy(&digits))
}

fn github(dice: &mut Dice) -> Result<Values> {
    one("github_token", checked(dice, "ghp_"))
}

fn gitlab(dice: &mut Dice) -> Result<Values> {
    one("gitlab_token", format!("glpat-{}", dice.text(WORD, 20)))
}

fn google(dice: &mut Dice) -> Result<Values> {
    one("google_api_key", format!("AIzaSy{}", dice.text(ADDRESS, 33)))
}

fn jwt(dice: &mut Dice) -> Result<Values> {
    let encoded = |text: &str| BASE64_URL_SAFE_NO_PAD.encode(text);
    let head = encoded(r#"{"alg":"HS256","typ":"JWT"}"#);
    let body = encoded(&format!(r#"{{"sub":"{}","role":"admin","iat":1716239022}}"#, dice.uuid()));
    one("session_token", format!("{head}.{body}.{}", BASE64_URL_SAFE_NO_PAD.encode(dice.bytes(32))))
}

fn npm(dice: &mut Dice) -> Result<Values> {
    one("npm_token", checked(dice, "npm_"))
}

/// Generates a private key. The key is not deterministic, but no result depends on its value.
fn private_key(_: &mut Dice) -> Result<Values> {
    one("private_key", KeyPair::generate()?.serialize_pem())
}

fn pypi(dice: &mut Dice) -> Result<Values> {
    one("pypi_token", format!("pypi-AgEIcHlwaS5vcmc{}", dice.text(ADDRESS, 150)))
}

fn slack(dice: &mut Dice) -> Result<Values> {
    let parts = [dice.text(DIGITS, 12), dice.text(DIGITS, 12), dice.text(WORD, 24)];
    one("slack_token", format!("xoxb-{}", parts.join("-")))
}

fn stripe(dice: &mut Dice) -> Result<Values> {
    one("stripe_key", format!("sk_live_{}", dice.text(WORD, 24)))
}
