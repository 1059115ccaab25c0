"""The tail of the normal distribution, from arithmetic alone (see exponential.py for the reason)."""

import numpy as np

from refsd.kernels._jit import kernel
from refsd.kernels.exponential import exp32_of_sum, exp64


@kernel(parallel=False)
def erfc64(z):
    """Compute the complementary error function in float64.

        erfc(z) = 2/sqrt(pi) integral from z to infinity of exp(-t^2) dt
                = exp(-z^2) p(t) / (z + 4),  t = (z - 4) / (z + 4),  z >= 0
        erfc(-z) = 2 - erfc(z)

    z:    float64
    -> y: float64

    p is a Chebyshev fit over 0 <= z <= 28; beyond 28 erfc underflows. tests/kernels/test_erfc.py
    repeats the fit. z^2 is computed in two parts, because its rounding alone would cost z^2 / 2 ULP
    in the tail.
    Error: measured <= 5 ULP.
    Source: Schonfelder 1978, Chebyshev expansions for the error and related functions.
    """
    a = abs(z)
    t = (a - 4.0) / (a + 4.0)
    p = 8.869835514662441e-10
    p = p * t - 6.987296169423388e-10
    p = p * t - 1.5207509634856582e-08
    p = p * t + 3.5500377373898268e-09
    p = p * t + 1.2405518908333955e-07
    p = p * t - 7.91801485675957e-08
    p = p * t - 8.46436500770969e-07
    p = p * t + 1.426957607991023e-06
    p = p * t + 4.694732512871604e-06
    p = p * t - 1.8862169511436185e-05
    p = p * t - 3.635346607985338e-06
    p = p * t + 0.0001768131963681377
    p = p * t - 0.0004550526321009879
    p = p * t - 0.0002809589358933055
    p = p * t + 0.006112055647081209
    p = p * t - 0.026370053332353913
    p = p * t + 0.0763815149100838
    p = p * t - 0.17401093724043631
    p = p * t + 0.33085158787797825
    p = p * t - 0.5408538313132204
    p = p * t + 0.7732087022652376
    p = p * t - 0.9765487290808821
    p = p * t + 1.095995661000491
    # a^2 = head^2 - rest; head^2 is exact in 52 bits. exp(rest) is its Taylor series up to rest^3.
    a = 28.0 if a > 28.0 else a
    head = np.int64(np.float64(a).view(np.int64) & np.int64(~0x7FFFFFF)).view(np.float64)
    rest = (head - a) * (head + a)
    y = exp64(-head * head) * (1.0 + rest * (1.0 + rest * (0.5 + rest * (1 / 6)))) * p / (a + 4.0)
    return 2.0 - y if z < 0.0 else y


@kernel(parallel=False, contract=True)
def normal_tail32(a):
    """Compute the probability that a normal variable exceeds a, in float32.

        Q(a) = erfc(a / sqrt(2)) / 2 = exp(-a^2 / 2) p(t) / (a + 3),  t = (a - 3) / (a + 3) = 1 - 6 / (a + 3)

    a:    float32 in 0 .. 15; beyond 13.2, where Q leaves the range of normal numbers, it gives 0
    -> y: float32

    p is a Chebyshev fit over 0 <= a <= 14.5; tests/kernels/test_erfc.py repeats it. a^2 is computed in two parts,
    because its rounding alone would cost a^2 / 4 ULP.
    Error: measured 6.28 ULP over all arguments with a result >= 2e-36 (tests/kernels/test_every_float32.py).
    Source: Schonfelder 1978, Chebyshev expansions for the error and related functions.
    """
    inverse = np.float32(1.0) / (a + np.float32(3.0))
    t = np.float32(1.0) - np.float32(6.0) * inverse
    p = np.float32(5.535596574191004e-05)
    p = p * t + np.float32(0.0001331259118160233)
    p = p * t - np.float32(0.00024458265397697687)
    p = p * t - np.float32(0.0010342220775783062)
    p = p * t + np.float32(0.0010241357376798987)
    p = p * t + np.float32(0.006969813257455826)
    p = p * t - np.float32(0.010462293401360512)
    p = p * t - np.float32(0.04726274684071541)
    p = p * t + np.float32(0.23001767694950104)
    p = p * t - np.float32(0.509332001209259)
    p = p * t + np.float32(0.7290837168693542)
    # -a^2 / 2 = whole + rest; whole is exact because head has 12 bits. Then high + low, without rounding error.
    head = np.int32(np.float32(a).view(np.int32) & np.int32(~0xFFF)).view(np.float32)
    whole = head * head * np.float32(-0.5)
    rest = (head - a) * (head + a) * np.float32(0.5)
    high = whole + rest
    return exp32_of_sum(high, (whole - high) + rest) * p * inverse
