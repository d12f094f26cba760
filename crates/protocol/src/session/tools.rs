//! Messages between the supervise daemon and the keeper process about the tools that the keeper executes. With these
//! tools, the agent starts other bottles.
//!
//! The keeper opens a stream for each call that it is ready to execute ([`super::bundle::BundleRequest::ToolCall`]). A
//! stream that closes cancels its call.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::frame::MAX_PAYLOAD;

/// The maximum length of an answer's content, in bytes of JSON. The remaining 4096 bytes of the payload are for the
/// JSON around the content.
pub const MAX_CONTENT: usize = MAX_PAYLOAD - 4096;

/// A request of the agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "kebab-case", deny_unknown_fields)]
pub enum ToolRequest {
    /// Lists the tools. Returns [`ToolAnswer::Tools`].
    List,
    /// Calls a tool. The arguments are untrusted.
    Call {
        /// The name of the tool.
        tool: String,
        /// The arguments of the tool.
        arguments: Map<String, Value>,
    },
}

/// The result of a [`ToolRequest`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "kebab-case", deny_unknown_fields)]
pub enum ToolAnswer {
    /// The tools, in the format of MCP.
    Tools {
        /// One object for each tool.
        tools: Vec<Value>,
    },
    /// The tool's result is a JSON object.
    Document {
        /// The JSON object.
        document: Value,
    },
    /// The tool's result is text.
    Text {
        /// The text.
        text: String,
    },
    /// The agent has to correct its call, or the tool failed.
    Mistake {
        /// A sentence for the agent.
        sentence: String,
    },
}

impl ToolAnswer {
    /// Creates a [`ToolAnswer::Mistake`].
    pub fn mistake(sentence: impl Into<String>) -> Self {
        Self::Mistake { sentence: sentence.into() }
    }
}
