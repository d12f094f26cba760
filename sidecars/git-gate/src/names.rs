//! Files that hold secrets by their name.

/// Whole names.
const WHOLE: &[&str] = &[
    ".env",
    ".git-credentials",
    ".htpasswd",
    ".netrc",
    "_netrc",
    ".pgpass",
    ".pypirc",
    ".my.cnf",
    "id_dsa",
    "id_ecdsa",
    "id_ecdsa_sk",
    "id_ed25519",
    "id_ed25519_sk",
    "id_rsa",
    "kubeconfig",
    "login.keychain",
    "credentials.tfrc.json",
    ".terraformrc",
    "service-account.json",
];

/// Ends of names.
const ENDS: &[&str] =
    &[".kdbx", ".p12", ".pfx", ".jks", ".keystore", ".ppk", ".tfstate", ".gnucash", ".ovpn"];

/// A folder and a name in it.
const PLACES: &[(&str, &str)] = &[
    (".aws", "credentials"),
    (".docker", "config.json"),
    (".kube", "config"),
    (".gnupg", "secring.gpg"),
    (".ssh", "identity"),
    ("gcloud", "credentials.db"),
];

/// What `.env` is called where it is only an example.
const EXAMPLES: &[&str] = &["example", "sample", "template", "dist", "test", "defaults"];

/// The rule that a file's name breaks, with the folder that it is in.
pub(crate) fn rule(folder: &[u8], name: &[u8]) -> Option<&'static str> {
    let (folder, name) = (folder.to_ascii_lowercase(), name.to_ascii_lowercase());
    let is = |other: &&str| name == other.as_bytes();
    if WHOLE.iter().any(is) || ENDS.iter().any(|end| name.ends_with(end.as_bytes())) {
        return Some("secret-file");
    }
    if PLACES.iter().any(|(place, file)| folder == place.as_bytes() && name == file.as_bytes()) {
        return Some("secret-file");
    }
    let rest = name.strip_prefix(b".env.")?;
    let example = rest.split(|byte| *byte == b'.').any(|word| EXAMPLES.iter().any(|e| word == e.as_bytes()));
    (!example).then_some("secret-file")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_hold_secrets() {
        for (folder, name, found) in [
            ("", ".env", true),
            ("app", ".ENV", true),
            ("", ".env.production", true),
            ("", ".env.example", false),
            ("", ".env.local.sample", false),
            ("", "env", false),
            ("", "id_rsa", true),
            ("", "id_rsa.pub", false),
            ("", "store.p12", true),
            (".aws", "credentials", true),
            ("src", "credentials", false),
            ("", "main.rs", false),
        ] {
            assert_eq!(rule(folder.as_bytes(), name.as_bytes()).is_some(), found, "{folder}/{name}");
        }
    }
}
