//! Parses the output of `container`. Every function is pure, and accepts any bytes.
//!
//! The lists also contain containers and images of other programs, so a missing field is no error. An object of another
//! program has no labels of a bottle.

use std::collections::HashMap;
use std::fmt;

use jiff::Timestamp;
use serde::Deserialize;

/// A version of `container` or of macOS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Version(pub(super) u32, pub(super) u32, pub(super) u32);

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.0, self.1, self.2)
    }
}

impl Version {
    /// Parses `1`, `1.2` or `1.2.3`. Ignores everything after a dash or a plus sign. Returns `None` for any other text.
    fn parse(text: &str) -> Option<Self> {
        let number = text.split(['-', '+']).next()?;
        let mut parts = number.split('.').map(str::parse);
        let mut part = || parts.next().unwrap_or(Ok(0)).ok();
        let version = Self(part()?, part()?, part()?);
        parts.next().is_none().then_some(version)
    }
}

/// Parses the output of `--version`, such as `container CLI version 1.2.2 (build: release, commit: 0190097)`.
pub(super) fn version(output: &[u8]) -> Option<Version> {
    let text = std::str::from_utf8(output).ok()?;
    let rest = text.lines().next()?.strip_prefix("container CLI version ")?;
    Version::parse(rest.split_whitespace().next()?)
}

/// Parses the output of `sw_vers -productVersion`, such as `26.1`.
pub(super) fn system_version(output: &[u8]) -> Option<Version> {
    Version::parse(std::str::from_utf8(output).ok()?.trim())
}

/// A container, as `list` shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Container {
    /// The id, which is the name that its creator chose.
    pub(super) id: String,
    /// The labels.
    pub(super) labels: HashMap<String, String>,
    /// The reference of the image.
    pub(super) image: String,
    /// The state: `running`, `stopped`, `stopping` or `unknown`.
    pub(super) state: String,
    /// The time at which the container was created.
    pub(super) created: Option<Timestamp>,
}

impl Container {
    /// Whether the container's first process runs.
    pub(super) fn is_running(&self) -> bool {
        self.state == "running"
    }
}

#[derive(Deserialize)]
struct RawContainer {
    #[serde(default)]
    id: String,
    #[serde(default)]
    configuration: RawConfiguration,
    #[serde(default)]
    status: RawStatus,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawConfiguration {
    #[serde(default)]
    labels: HashMap<String, String>,
    #[serde(default)]
    image: RawReference,
    creation_date: Option<String>,
}

#[derive(Default, Deserialize)]
struct RawReference {
    #[serde(default)]
    reference: String,
}

/// The status of a container. Versions before 1.0 print only the state.
#[derive(Deserialize)]
#[serde(untagged)]
enum RawStatus {
    State {
        #[serde(default)]
        state: String,
    },
    Old(String),
}

impl Default for RawStatus {
    fn default() -> Self {
        Self::Old(String::new())
    }
}

/// Parses the list of containers.
///
/// # Errors
/// When the output is not a list of containers.
pub(super) fn containers(output: &[u8]) -> serde_json::Result<Vec<Container>> {
    let listed: Vec<RawContainer> = serde_json::from_slice(output)?;
    let from_raw = |raw: RawContainer| {
        let RawConfiguration { labels, image, creation_date } = raw.configuration;
        let state = match raw.status {
            RawStatus::State { state } | RawStatus::Old(state) => state,
        };
        let created = creation_date.and_then(|date| date.parse().ok());
        Container { id: raw.id, labels, image: image.reference, state, created }
    };
    Ok(listed.into_iter().map(from_raw).collect())
}

/// A volume, as `volume list` shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Volume {
    /// The volume's name.
    pub(super) name: String,
    /// The labels.
    pub(super) labels: HashMap<String, String>,
}

#[derive(Deserialize)]
struct RawVolume {
    #[serde(default)]
    configuration: RawVolumeConfiguration,
}

#[derive(Default, Deserialize)]
struct RawVolumeConfiguration {
    #[serde(default)]
    name: String,
    #[serde(default)]
    labels: HashMap<String, String>,
}

/// Parses the list of volumes.
///
/// # Errors
/// When the output is not a list of volumes.
pub(super) fn volumes(output: &[u8]) -> serde_json::Result<Vec<Volume>> {
    let listed: Vec<RawVolume> = serde_json::from_slice(output)?;
    let from_raw =
        |RawVolume { configuration: RawVolumeConfiguration { name, labels } }| Volume { name, labels };
    Ok(listed.into_iter().map(from_raw).collect())
}

/// An image, as `image list` shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Image {
    /// The reference, such as `localhost/bottle-agent:0123`.
    pub(super) reference: String,
    /// The labels of the image's configuration.
    pub(super) labels: HashMap<String, String>,
    /// The environment variables of the image's configuration, as `NAME=value`.
    pub(super) env: Vec<String>,
    /// The size in bytes.
    pub(super) bytes: u64,
}

#[derive(Deserialize)]
struct RawImage {
    #[serde(default)]
    configuration: RawImageName,
    #[serde(default)]
    variants: Vec<RawVariant>,
}

#[derive(Default, Deserialize)]
struct RawImageName {
    #[serde(default)]
    name: String,
}

#[derive(Deserialize)]
struct RawVariant {
    #[serde(default)]
    size: u64,
    #[serde(default)]
    config: RawImageConfig,
}

#[derive(Default, Deserialize)]
struct RawImageConfig {
    #[serde(default)]
    config: RawOciConfig,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct RawOciConfig {
    labels: Option<HashMap<String, String>>,
    env: Option<Vec<String>>,
}

/// Parses the list of images.
///
/// # Errors
/// When the output is not a list of images.
pub(super) fn images(output: &[u8]) -> serde_json::Result<Vec<Image>> {
    let listed: Vec<RawImage> = serde_json::from_slice(output)?;
    let from_raw = |raw: RawImage| {
        let bytes = raw.variants.iter().fold(0_u64, |sum, variant| sum.saturating_add(variant.size));
        let config = raw.variants.into_iter().map(|variant| variant.config.config);
        let config =
            config.max_by_key(|config| config.labels.as_ref().map_or(0, HashMap::len)).unwrap_or_default();
        let (labels, env) = (config.labels.unwrap_or_default(), config.env.unwrap_or_default());
        Image { reference: raw.configuration.name, labels, env, bytes }
    };
    Ok(listed.into_iter().map(from_raw).collect())
}

/// Parses the output of `system status`. Returns the status of the services, such as `running` or `not running`.
/// Returns `None` if the output has no status in a known form.
///
/// Versions before 1.4 print the paths and the version of the services beside `status`, also when they are empty. Since
/// 1.4, the objects `client`, `server`, `host`, `paths` and `resources` are beside `status`, and only while the services
/// run. A later version may nest the status in an object, as version 1.0 did in the list of containers.
pub(super) fn service_status(output: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Services {
        status: RawStatus,
    }
    let Services { status: RawStatus::State { state } | RawStatus::Old(state) } =
        serde_json::from_slice(output).ok()?;
    (!state.is_empty()).then_some(state)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_versions_and_refuses_other_text() {
        let is = |text: &str| version(text.as_bytes()).map(|version| version.to_string());
        assert_eq!(
            is("container CLI version 1.2.2 (build: release, commit: 0190097)\n").as_deref(),
            Some("1.2.2")
        );
        assert_eq!(is("container CLI version 1.3.0-beta.1 (build: debug)").as_deref(), Some("1.3.0"));
        for other in [
            "",
            "container 1.2.2",
            "container CLI version x.y",
            "container CLI version 1.2.3.4",
            "\u{1b}[31m",
        ] {
            assert_eq!(is(other), None, "{other}");
        }
        assert_eq!(version(b"container CLI version \xff"), None);
        assert_eq!(system_version(b"26.1\n"), Some(Version(26, 1, 0)));
        assert_eq!(system_version(b"15"), Some(Version(15, 0, 0)));
        assert_eq!(system_version(b"Linux"), None);
        assert!(Version(1, 10, 0) > Version(1, 9, 9));
    }

    #[test]
    fn reads_containers_of_the_documented_form_and_of_other_programs() {
        let text = r#"[
            {"id":"a","configuration":{"id":"a","labels":{"bottle.home":"0123abcd"},"creationDate":"2026-08-07T10:00:00Z",
              "image":{"reference":"localhost\/bottle-agent:1","descriptor":{"digest":"sha256:0","size":1}},"mounts":[]},
             "status":{"state":"running","networks":[],"startedDate":"2026-08-07T10:00:01Z"}},
            {"id":"old","configuration":{},"status":"stopped"},
            {"surprise":1}]"#;
        let found = containers(text.as_bytes()).expect("a list");
        assert_eq!((found[0].id.as_str(), found[0].is_running()), ("a", true));
        assert_eq!(found[0].image, "localhost/bottle-agent:1");
        assert_eq!(found[0].labels["bottle.home"], "0123abcd");
        assert_eq!(found[0].created, "2026-08-07T10:00:00Z".parse().ok());
        assert_eq!((found[1].state.as_str(), found[1].is_running()), ("stopped", false));
        assert_eq!((found[2].id.as_str(), found[2].labels.len()), ("", 0));
    }

    #[test]
    fn reads_volumes_and_images() {
        let text = r#"[{"id":"v","configuration":{"name":"v","driver":"local","labels":{"a":"b"},"sizeInBytes":1}}]"#;
        assert_eq!(volumes(text.as_bytes()).expect("a list")[0].labels["a"], "b");
        let text = r#"[{"id":"0a","configuration":{"name":"localhost/x:1","descriptor":{}},"variants":[
            {"platform":{"os":"unknown"},"size":5,"config":{"config":{}}},
            {"platform":{"os":"linux"},"digest":"sha256:1","size":7,
             "config":{"config":{"Labels":{"bottle.image":"agent"},"Env":["A=b"]},"rootfs":{"diff_ids":[]}}}]},
            {"configuration":{"name":"other"},"variants":[{"config":{"config":{"Labels":null}}}]}]"#;
        let found = images(text.as_bytes()).expect("a list");
        assert_eq!((found[0].reference.as_str(), found[0].bytes), ("localhost/x:1", 12));
        assert_eq!(
            (found[0].labels["bottle.image"].as_str(), found[0].env.as_slice()),
            ("agent", &["A=b".to_owned()][..])
        );
        assert!(found[1].labels.is_empty());
    }

    #[test]
    fn reads_the_status_of_the_services_in_every_form() {
        let status = |text: &str| service_status(text.as_bytes());
        // The forms of 1.2 and of 1.4.
        for running in [
            r#"{"apiServerAppName":"container-apiserver","apiServerBuild":"release","apiServerCommit":"0190097",
                "apiServerVersion":"container-apiserver version 1.2.2 (build: release, commit: 0190097)",
                "appRoot":"\/Users\/u\/Library\/Application Support\/com.apple.container\/",
                "installRoot":"\/usr\/local\/","status":"running"}"#,
            r#"{"client":{"appName":"container","build":"release","commit":"0","version":"1.4.1"},
                "host":{"architecture":"arm64","cpus":12,"operatingSystem":"Version 26.5.1 (Build 25F80)"},
                "paths":{"appRoot":"/Users/u/Library/Application Support/com.apple.container/","installRoot":"/usr/local/"},
                "resources":{"containersRunning":0,"containersTotal":6,"images":17},
                "server":{"appName":"container-apiserver","build":"release","commit":"0","version":"1.4.1"},
                "status":"running"}"#,
            r#"{"status":{"state":"running"}}"#,
        ] {
            assert_eq!(status(running).as_deref(), Some("running"), "{running}");
        }
        let stopped = r#"{"apiServerVersion":"","appRoot":"","installRoot":"","status":"unregistered"}"#;
        assert_eq!(status(stopped).as_deref(), Some("unregistered"));
        assert_eq!(status(r#"{"status":"not running"}"#).as_deref(), Some("not running"));
        for none in ["", "[]", "running", "{}", r#"{"status":1}"#, r#"{"status":{}}"#, "\u{1b}[31m"] {
            assert_eq!(status(none), None, "{none}");
        }
    }

    #[test]
    fn garbage_is_an_error_everywhere() {
        for garbage in [&b""[..], b"null", b"{}", b"Warning: new version\n[]", b"[1]", b"\xff\xfe"] {
            assert!(
                containers(garbage).is_err() && volumes(garbage).is_err() && images(garbage).is_err(),
                "{garbage:?}"
            );
        }
    }
}
