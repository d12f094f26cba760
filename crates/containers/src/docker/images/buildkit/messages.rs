//! The messages of BuildKit's protocols, with only the fields that a build needs. The field numbers come from the files
//! `control.proto`, `auth.proto` and `secrets.proto` of BuildKit. Unknown fields are ignored.

/// The request of `moby.filesync.v1.Auth/Credentials`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(super) struct CredentialsRequest {
    /// The host name and port of the registry.
    #[prost(string, tag = "1")]
    pub(super) host: String,
}

/// The response of `moby.filesync.v1.Auth/Credentials`. If the user name is empty, the secret is an identity token.
#[derive(Clone, PartialEq, Eq, prost::Message)]
#[prost(skip_debug)]
pub(super) struct CredentialsResponse {
    #[prost(string, tag = "1")]
    pub(super) username: String,
    #[prost(string, tag = "2")]
    pub(super) secret: String,
}

/// The request of `moby.buildkit.secrets.v1.Secrets/GetSecret`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(super) struct GetSecretRequest {
    /// The id that the Dockerfile uses for the secret.
    #[prost(string, tag = "1")]
    pub(super) id: String,
}

/// The response of `moby.buildkit.secrets.v1.Secrets/GetSecret`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
#[prost(skip_debug)]
pub(super) struct GetSecretResponse {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) data: Vec<u8>,
}

/// The response of `grpc.health.v1.Health/Check`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(super) struct HealthResponse {
    /// 1 if the service is serving.
    #[prost(int32, tag = "1")]
    pub(super) status: i32,
}

/// A report about the progress of a build.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(super) struct Progress {
    #[prost(message, repeated, tag = "1")]
    pub(super) vertexes: Vec<Vertex>,
    #[prost(message, repeated, tag = "3")]
    pub(super) logs: Vec<VertexLog>,
}

/// A step of a build.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(super) struct Vertex {
    #[prost(string, tag = "1")]
    pub(super) digest: String,
    #[prost(string, tag = "3")]
    pub(super) name: String,
    #[prost(bool, tag = "4")]
    pub(super) cached: bool,
    #[prost(message, optional, tag = "5")]
    pub(super) started: Option<Timestamp>,
}

/// A part of a step's output.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(super) struct VertexLog {
    #[prost(string, tag = "1")]
    pub(super) vertex: String,
    #[prost(bytes = "vec", tag = "4")]
    pub(super) msg: Vec<u8>,
}

/// A point in time. Only the presence of the field matters.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(super) struct Timestamp {}

impl std::fmt::Debug for CredentialsResponse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("CredentialsResponse")
    }
}

impl std::fmt::Debug for GetSecretResponse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("GetSecretResponse")
    }
}
