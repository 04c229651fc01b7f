//! Mistakes that an engine could make.

/// A mistake. Most families can show only some of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The other pairing of rotated values.
    OtherRopeStyle,
    /// Query heads read the KV heads in reverse order.
    SwappedKvHeads,
    /// Every position sees the whole text.
    NoMask,
    /// `rope_freqs.weight` and the long and short factors are ignored.
    NoRopeFactors,
    /// The long factors are taken for the short ones, and the other way round.
    OtherRopeFactors,
    /// Biases of q, k and v are ignored.
    NoQkvBias,
    /// The bias of the output projection is ignored.
    NoOutputBias,
    /// The scale of the scores is 2 % too large.
    ScaleOff,
    /// `attention.scale` is ignored.
    NoAttentionScale,
    /// Every position counts one less.
    PositionOff,
    /// The window holds one position more.
    WiderWindow,
    /// The window is ignored, as llama.cpp does with that of phi3.
    NoWindow,
    /// The pattern of layers with a window is one layer late.
    WindowLayers,
    /// Layers with a window use the rope base of those without.
    OneRopeBase,
    /// Layers with a window scale the rope as those without do.
    ScaledWindowRope,
    /// The soft cap of the scores is ignored.
    NoScoreCap,
    /// The soft cap of the logits is ignored.
    NoLogitCap,
    /// The norms after attention and feed-forward part are ignored.
    NoPostNorm,
    /// SiLU for GELU, GELU for SiLU.
    OtherActivation,
    /// GELU of a 16-bit float, rounded to one: no mistake, but how llama.cpp has it.
    HalfGelu,
    /// Gate and up change places.
    SwappedGateUp,
    /// The embedding is not scaled.
    NoEmbeddingScale,
    /// The parts of a block are added unscaled.
    NoResidualScale,
    /// The logits are not scaled.
    NoLogitScale,
    /// The norms of q and k are ignored.
    NoQkNorm,
    /// q and k are normalised after the rotation.
    QkNormAfterRope,
    /// q and k are normalised by head where they should be by row.
    QkNormByHead,
    /// Every layer is rotated.
    RopeEverywhere,
    /// Linear or YaRN scaling of the rope is ignored.
    NoRopeScaling,
    /// The corners of YaRN's ramp are whole numbers where they should not be, as llama.cpp has it.
    RoundedYarnCorners,
    /// YaRN scales all frequencies alike.
    NoYarnRamp,
    /// The magnitude that goes with a scaled rope is ignored.
    NoRopeMagnitude,
    /// The magnitude is applied to q alone.
    MagnitudeOfQueriesOnly,
    /// The temperature of long texts is ignored.
    NoTemperature,
    /// The temperature steps one position early.
    EarlyTemperature,
    /// The chosen experts' weights are given out in reverse.
    ExpertOrder,
    /// The chosen experts' weights don't add up to one.
    ExpertSum,
    /// One expert less is used.
    FewerExperts,
    /// The router's bias is ignored.
    NoRouterBias,
    /// The experts' biases are ignored.
    NoExpertBias,
    /// The sinks are ignored.
    NoSinks,
    /// The gate and up of the clamped activation are not clamped.
    NoClamp,
    /// The clamped activation has the sigmoid of SiLU.
    NoSigmoidFactor,
    /// The clamped activation does not add one to up.
    NoUpOffset,
}
