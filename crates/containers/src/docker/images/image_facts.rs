//! Reads the parts of an image's configuration that `bottle` uses. The module has no side effects.

use std::collections::BTreeMap;

use bollard::models::ImageInspect;
use bottle_backend::image::account::{ACCOUNT_LABEL, Account};
use bottle_backend::image::config::Config;

/// The label that lists the image's instructions that have no effect in a bottle.
pub(crate) const LEFT_OUT_LABEL: &str = "bottle.left-out";

/// The label of an image that was built from the user's Dockerfile. Its JSON value contains the reference and the id of
/// each base image.
pub(super) const BASES_LABEL: &str = "bottle.bases";
/// The label of the tools' image that contains the time at which the image's packages were installed, in seconds since
/// 1970.
pub(super) const PACKAGES_LABEL: &str = "bottle.packages-at";

/// The parts of an image's configuration that `bottle` uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Facts {
    /// The image's id.
    pub(super) id: String,
    /// The user that `USER` sets.
    pub(super) user: String,
    /// The variables that `ENV` sets, as `NAME=value`.
    pub(super) env: Vec<String>,
    /// The directories that `VOLUME` declares.
    pub(super) volumes: Vec<String>,
    /// The image's instructions that have no effect in a bottle, such as `ENTRYPOINT`.
    pub(super) left_out: Vec<String>,
    /// The agent's account, from the label [`ACCOUNT_LABEL`].
    pub(super) account: Option<Account>,
    /// The ids that the base images had at the build, by reference, from the label [`BASES_LABEL`].
    pub(super) bases: BTreeMap<String, String>,
    /// The time at which the packages of the tools' image were installed, in seconds since 1970.
    pub(super) packages_at: Option<i64>,
}

/// Reads the configuration of an image for an engine of this processor architecture.
///
/// # Errors
/// Why the image cannot be used, as the end of a sentence that begins with the image's name.
pub(super) fn facts(image: &ImageInspect, architecture: &str) -> Result<Facts, String> {
    let id = image.id.clone().ok_or("has no id")?;
    let own = image.config.clone().unwrap_or_default();
    let labels = own.labels.unwrap_or_default();
    let of_label = |name: &str| labels.get(name).map(String::as_str);
    let config = Config {
        os: image.os.clone().unwrap_or_default(),
        architecture: image.architecture.clone().unwrap_or_default(),
        user: own.user.unwrap_or_default(),
        env: own.env.unwrap_or_default(),
        volumes: own.volumes.unwrap_or_default(),
        entrypoint: own.entrypoint.is_some_and(|words| !words.is_empty()),
        healthcheck: own.healthcheck.and_then(|check| check.test).unwrap_or_default(),
        on_build: own.on_build.is_some_and(|steps| !steps.is_empty()),
        labels: BTreeMap::new(),
    };
    config.expect_for(architecture, "this engine")?;
    let left_out = match of_label(LEFT_OUT_LABEL) {
        Some(list) => list.split(',').filter(|one| !one.is_empty()).map(str::to_owned).collect(),
        None => config.left_out(),
    };
    Ok(Facts {
        id,
        user: config.user,
        env: config.env,
        volumes: config.volumes,
        left_out,
        account: of_label(ACCOUNT_LABEL).and_then(Account::from_label),
        bases: of_label(BASES_LABEL).and_then(|json| serde_json::from_str(json).ok()).unwrap_or_default(),
        packages_at: of_label(PACKAGES_LABEL).and_then(|seconds| seconds.parse().ok()),
    })
}

#[cfg(test)]
mod tests {
    use bollard::models::{HealthConfig, ImageConfig};

    use super::*;

    fn image(change: impl FnOnce(&mut ImageConfig)) -> ImageInspect {
        let mut config = ImageConfig::default();
        change(&mut config);
        ImageInspect {
            id: Some("sha256:1".to_owned()),
            os: Some("linux".to_owned()),
            architecture: Some("amd64".to_owned()),
            config: Some(config),
            ..ImageInspect::default()
        }
    }

    fn words(words: &[&str]) -> Option<Vec<String>> {
        Some(words.iter().map(|word| (*word).to_owned()).collect())
    }

    #[test]
    fn another_machines_image_is_refused_by_name() {
        for (os, architecture, expected) in [
            ("linux", "amd64", None),
            ("", "", None),
            ("linux", "arm64", Some("is for arm64, not for this engine (amd64)")),
            ("windows", "amd64", Some("is for windows, not for Linux")),
        ] {
            let mut image = image(|_| ());
            (image.os, image.architecture) = (Some(os.to_owned()), Some(architecture.to_owned()));
            assert_eq!(facts(&image, "amd64").err().as_deref(), expected, "{os} {architecture}");
        }
    }

    #[test]
    fn reports_instructions_without_effect() {
        type Change = fn(&mut ImageConfig);
        fn health(test: &[&str]) -> Option<HealthConfig> {
            Some(HealthConfig { test: words(test), ..HealthConfig::default() })
        }
        let cases: [(Change, &[&str]); 9] = [
            (|_| (), &[]),
            (|config| config.entrypoint = words(&["/run.sh"]), &["ENTRYPOINT"]),
            (|config| config.entrypoint = words(&[]), &[]),
            (|config| config.healthcheck = health(&["CMD", "true"]), &["HEALTHCHECK"]),
            (|config| config.healthcheck = health(&["NONE"]), &[]),
            (|config| config.on_build = words(&["RUN true"]), &["ONBUILD"]),
            (|config| config.user = Some("root".to_owned()), &["USER"]),
            (|config| config.user = Some("0:0".to_owned()), &["USER"]),
            (|config| config.user = Some("rooted:0".to_owned()), &[]),
        ];
        for (index, (change, expected)) in cases.into_iter().enumerate() {
            let facts = facts(&image(change), "amd64").expect("facts");
            assert_eq!(facts.left_out, expected, "{index}");
        }
    }

    #[test]
    fn a_prepared_image_names_its_agents_account() {
        let labels = |account: &str| {
            let pairs = [(ACCOUNT_LABEL, account), (LEFT_OUT_LABEL, "ENTRYPOINT,HEALTHCHECK")];
            Some(pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).into())
        };
        let read = |account: &str| {
            let image = image(|config| {
                config.labels = labels(account);
                // An entrypoint that `bottle` set is not reported as an instruction without effect.
                config.entrypoint = words(&["/bottle"]);
                config.volumes = words(&["/data"]);
            });
            facts(&image, "amd64").expect("facts")
        };
        let facts = read("1000:1001:node:/home/node");
        assert_eq!(facts.account.map(|account| (account.uid, account.gid)), Some((1000, 1001)));
        assert_eq!(facts.left_out, ["ENTRYPOINT", "HEALTHCHECK"]);
        assert_eq!(facts.volumes, ["/data"]);
        assert_eq!(read("0:0:root:/root").account, None);
    }
}
