//! minfer runs quantised GGUF language models on the machine in front of you.
//!
//! The way through the library: [`Model::load`] reads a file and places its weights, a [`Session`] owns
//! the KV cache and runs [`Batch`]es of tokens through the compute graph, a [`Sampler`] picks tokens from
//! the logits, and [`generate`](generate()) ties the three together. A [`Conversation`] keeps messages, renders
//! them with the model's chat template and computes only what is new in each turn.
//!
//! ```no_run
//! # fn main() -> Result<(), minfer::Error> {
//! let model = minfer::Model::load("model.gguf".as_ref(), Default::default())?;
//! let mut session = minfer::Session::new(&model, minfer::SessionOptions::default())?;
//! let prompt = model.tokenizer()?.encode("The capital of France is", Default::default());
//! let mut sampler = minfer::Sampler::new(minfer::SamplerConfig::greedy())?;
//! let seq = session.new_sequence()?;
//! let options = minfer::GenerateOptions { max_tokens: Some(16), ..Default::default() };
//! let answer = minfer::generate(
//!     &mut session, seq, &prompt, &mut sampler, &options, &Default::default(), &mut |_| {},
//! )?;
//! assert!(!answer.text.is_empty());
//! # Ok(()) }
//! ```
#![deny(unsafe_code)]

mod batch;
mod ceilings;
mod constraint;
mod conversation;
mod devices;
pub mod engine;
mod error;
mod file;
mod generate;
mod guided;
mod knobs;
mod kv_cache;
mod load;
mod logprobs;
mod mapped;
mod memory;
mod model;
mod placement;
mod plans;
mod profile;
mod reader;
mod sampler;
mod session;
mod speed;
mod stop;

pub use batch::{Batch, Wanted};
pub use ceilings::{Ceilings, MachineProbe};
pub use constraint::{Constraint, ConstraintFactory, TokenMask};
pub use conversation::{Conversation, Entry, Overflow, Speaker, Turn};
pub use devices::{DEVICE_KINDS, DeviceChoice, DeviceInfo, InstructionSet, devices};
pub use error::{Error, ErrorKind};
pub use file::ModelFile;
pub use generate::{Answer, Finish, GenerateOptions, generate};
pub use guided::{Grammar, Guide};
pub use knobs::{KNOBS, Knob, OTHER_VARIABLES, knob_value};
pub use kv_cache::{PageCounts, SeqId};
pub use load::{LoadMode, LoadProgress};
pub use logprobs::{LogProbs, top_k};
pub use memory::{DeviceMemory, MemoryForecast, check_memory, choose_load, forecast, prepare_memory};
pub use model::{LoadOptions, Model};
pub use placement::{GpuLayers, Layout, Placement, Share};
pub use plans::session_plans;
pub use profile::{OpCost, OpProfile};
pub use sampler::{LogitBias, Mirostat, Sampled, Sampler, SamplerConfig};
pub use session::{Control, EachRow, GraphTrace, Logits, Session, SessionOptions, StepObserver};
pub use speed::{MachineRates, SpeedForecast, TokenWork, forecast_speed};
pub use stop::StopMatcher;

pub use minfer_gguf as gguf;
pub use minfer_graph as graph;
pub use minfer_graph::{KvType, KvTypes};
pub use minfer_models as models;
pub use minfer_text as text;
