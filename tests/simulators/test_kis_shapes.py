"""Answers of the simulated KIS beside the documents: exact fields, and strings everywhere."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from qts.domain import ManualClock
from tests.simulators.clients import Kis
from tests.simulators.conftest import StartKis

SYMBOL = {"FID_COND_MRKT_DIV_CODE": "J", "FID_INPUT_ISCD": "005930"}
PERIOD = {"INQR_STRT_DT": "20260101", "INQR_END_DT": "20271231", "SORT_DVSN": "00"}
PRODUCT = {"PDNO": "005930", "PRDT_TYPE_CD": "300"}
DAYS = SYMBOL | {
    "FID_INPUT_DATE_1": "20260901",
    "FID_INPUT_DATE_2": "20261116",
    "FID_PERIOD_DIV_CODE": "D",
    "FID_ORG_ADJ_PRC": "0",
}
HOUR = SYMBOL | {"FID_INPUT_HOUR_1": "090200", "FID_PW_DATA_INCU_YN": "Y", "FID_ETC_CLS_CODE": ""}

QUOTE = """
    iscd_stat_cls_code marg_rate rprs_mrkt_kor_name new_hgpr_lwpr_cls_code bstp_kor_isnm
    temp_stop_yn oprc_rang_cont_yn clpr_rang_cont_yn crdt_able_yn grmn_rate_cls_code elw_pblc_yn
    stck_prpr prdy_vrss prdy_vrss_sign prdy_ctrt acml_tr_pbmn acml_vol prdy_vrss_vol_rate stck_oprc
    stck_hgpr stck_lwpr stck_mxpr stck_llam stck_sdpr wghn_avrg_stck_prc hts_frgn_ehrt frgn_ntby_qty
    pgtr_ntby_qty pvt_scnd_dmrs_prc pvt_frst_dmrs_prc pvt_pont_val pvt_frst_dmsp_prc
    pvt_scnd_dmsp_prc dmrs_val dmsp_val cpfn rstc_wdth_prc stck_fcam stck_sspr aspr_unit
    hts_deal_qty_unit_val lstn_stcn hts_avls per pbr stac_month vol_tnrt eps bps d250_hgpr
    d250_hgpr_date d250_hgpr_vrss_prpr_rate d250_lwpr d250_lwpr_date d250_lwpr_vrss_prpr_rate
    stck_dryy_hgpr dryy_hgpr_vrss_prpr_rate dryy_hgpr_date stck_dryy_lwpr dryy_lwpr_vrss_prpr_rate
    dryy_lwpr_date w52_hgpr w52_hgpr_vrss_prpr_ctrt w52_hgpr_date w52_lwpr w52_lwpr_vrss_prpr_ctrt
    w52_lwpr_date whol_loan_rmnd_rate ssts_yn stck_shrn_iscd fcam_cnnm cpfn_cnnm apprch_rate
    frgn_hldn_qty vi_cls_code ovtm_vi_cls_code last_ssts_cntg_qty invt_caful_yn mrkt_warn_cls_code
    short_over_yn sltr_yn mang_issu_cls_code
"""
QUOTE_2 = """
    rprs_mrkt_kor_name new_hgpr_lwpr_cls_code mxpr_llam_cls_code crdt_able_yn stck_mxpr elw_pblc_yn
    prdy_clpr_vrss_oprc_rate crdt_rate marg_rate lwpr_vrss_prpr lwpr_vrss_prpr_sign
    prdy_clpr_vrss_lwpr_rate stck_lwpr hgpr_vrss_prpr hgpr_vrss_prpr_sign prdy_clpr_vrss_hgpr_rate
    stck_hgpr oprc_vrss_prpr oprc_vrss_prpr_sign mang_issu_yn divi_app_cls_code short_over_yn
    mrkt_warn_cls_code invt_caful_yn stange_runup_yn ssts_hot_yn low_current_yn vi_cls_code
    short_over_cls_code stck_llam new_lstn_cls_name vlnt_deal_cls_name flng_cls_name
    revl_issu_reas_name mrkt_warn_cls_name stck_sdpr bstp_cls_code stck_prdy_clpr insn_pbnt_yn
    fcam_mod_cls_name stck_prpr prdy_vrss prdy_vrss_sign prdy_ctrt acml_tr_pbmn acml_vol
    prdy_vrss_vol_rate bstp_kor_isnm sltr_yn trht_yn oprc_rang_cont_yn vlnt_fin_cls_code stck_oprc
    prdy_vol
"""
LEVELS = " ".join(
    f"{side}{n} {side}_rsqn{n} {side}_rsqn_icdc{n}"
    for side in ("askp", "bidp")
    for n in range(1, 11)
)
BOOK = f"""
    aspr_acpt_hour {LEVELS} total_askp_rsqn total_bidp_rsqn total_askp_rsqn_icdc
    total_bidp_rsqn_icdc ovtm_total_askp_icdc ovtm_total_bidp_icdc ovtm_total_askp_rsqn
    ovtm_total_bidp_rsqn ntby_aspr_rsqn new_mkop_cls_code
"""
EXPECTED = """
    antc_mkop_cls_code stck_prpr stck_oprc stck_hgpr stck_lwpr stck_sdpr antc_cnpr
    antc_cntg_vrss_sign antc_cntg_vrss antc_cntg_prdy_ctrt antc_vol stck_shrn_iscd vi_cls_code
"""
TRADE = "stck_cntg_hour stck_prpr prdy_vrss prdy_vrss_sign cntg_vol tday_rltv prdy_ctrt"
TIMED = """
    stck_cntg_hour stck_pbpr prdy_vrss prdy_vrss_sign prdy_ctrt askp bidp tday_rltv acml_vol cnqn
"""
TIMED_SUMMARY = """
    stck_prpr prdy_vrss prdy_vrss_sign prdy_ctrt acml_vol prdy_vol rprs_mrkt_kor_name
"""
DAY = """
    stck_bsop_date stck_clpr stck_oprc stck_hgpr stck_lwpr acml_vol acml_tr_pbmn flng_cls_code
    prtt_rate mod_yn prdy_vrss_sign prdy_vrss revl_issu_reas
"""
DAY_SUMMARY = """
    prdy_vrss prdy_vrss_sign prdy_ctrt stck_prdy_clpr acml_vol acml_tr_pbmn hts_kor_isnm stck_prpr
    stck_shrn_iscd prdy_vol stck_mxpr stck_llam stck_oprc stck_hgpr stck_lwpr stck_prdy_oprc
    stck_prdy_hgpr stck_prdy_lwpr askp bidp prdy_vrss_vol vol_tnrt stck_fcam lstn_stcn cpfn hts_avls
    per eps pbr itewhol_loan_rmnd_ratem
"""
RECENT = """
    stck_bsop_date stck_oprc stck_hgpr stck_lwpr stck_clpr acml_vol prdy_vrss_vol_rate prdy_vrss
    prdy_vrss_sign prdy_ctrt hts_frgn_ehrt frgn_ntby_qty flng_cls_code acml_prtt_rate
"""
MINUTE = """
    stck_bsop_date stck_cntg_hour stck_prpr stck_oprc stck_hgpr stck_lwpr cntg_vol acml_tr_pbmn
"""
MINUTE_SUMMARY = """
    prdy_vrss prdy_vrss_sign prdy_ctrt stck_prdy_clpr acml_vol acml_tr_pbmn hts_kor_isnm stck_prpr
"""
INVESTORS = """
    stck_bsop_date stck_clpr prdy_vrss prdy_vrss_sign prsn_ntby_qty frgn_ntby_qty orgn_ntby_qty
    prsn_ntby_tr_pbmn frgn_ntby_tr_pbmn orgn_ntby_tr_pbmn prsn_shnu_vol frgn_shnu_vol orgn_shnu_vol
    prsn_shnu_tr_pbmn frgn_shnu_tr_pbmn orgn_shnu_tr_pbmn prsn_seln_vol frgn_seln_vol orgn_seln_vol
    prsn_seln_tr_pbmn frgn_seln_tr_pbmn orgn_seln_tr_pbmn
"""
INFO = """
    pdno prdt_type_cd prdt_name prdt_name120 prdt_abrv_name prdt_eng_name prdt_eng_name120
    prdt_eng_abrv_name std_pdno shtn_pdno prdt_sale_stat_cd prdt_risk_grad_cd prdt_clsf_cd
    prdt_clsf_name sale_strt_dt sale_end_dt wrap_asst_type_cd ivst_prdt_type_cd
    ivst_prdt_type_cd_name frst_erlm_dt
"""
STOCK_INFO = """
    pdno prdt_type_cd prdt_name prdt_name120 prdt_abrv_name prdt_eng_name prdt_eng_name120
    prdt_eng_abrv_name mket_id_cd scty_grp_id_cd excg_dvsn_cd setl_mmdd lstg_stqt lstg_cptl_amt cpta
    papr issu_pric kospi200_item_yn scts_mket_lstg_dt scts_mket_lstg_abol_dt kosdaq_mket_lstg_dt
    kosdaq_mket_lstg_abol_dt frbd_mket_lstg_dt frbd_mket_lstg_abol_dt reits_kind_cd etf_dvsn_cd
    oilf_fund_yn idx_bztp_lcls_cd idx_bztp_mcls_cd idx_bztp_scls_cd idx_bztp_lcls_cd_name
    idx_bztp_mcls_cd_name idx_bztp_scls_cd_name stck_kind_cd mfnd_opng_dt mfnd_end_dt
    dpsi_erlm_cncl_dt etf_cu_qty std_pdno dpsi_aptm_erlm_yn etf_txtn_type_cd etf_type_cd
    lstg_abol_dt nwst_odst_dvsn_cd sbst_pric thco_sbst_pric thco_sbst_pric_chng_dt tr_stop_yn
    admn_item_yn thdt_clpr bfdy_clpr clpr_chng_dt std_idst_clsf_cd std_idst_clsf_cd_name ocr_no
    crfd_item_yn elec_scty_yn issu_istt_cd etf_chas_erng_rt_dbnb etf_etn_ivst_heed_item_yn
    stln_int_rt_dvsn_cd frnr_psnl_lmt_rt lstg_rqsr_issu_istt_cd lstg_rqsr_item_cd
    trst_istt_issu_istt_cd cptt_trad_tr_psbl_yn nxt_tr_stop_yn
"""
INDEX = """
    bstp_nmix_prpr bstp_nmix_prdy_vrss prdy_vrss_sign bstp_nmix_prdy_ctrt acml_vol prdy_vol
    acml_tr_pbmn prdy_tr_pbmn bstp_nmix_oprc prdy_nmix_vrss_nmix_oprc oprc_vrss_prpr_sign
    bstp_nmix_oprc_prdy_ctrt bstp_nmix_hgpr prdy_nmix_vrss_nmix_hgpr hgpr_vrss_prpr_sign
    bstp_nmix_hgpr_prdy_ctrt bstp_nmix_lwpr prdy_clpr_vrss_lwpr lwpr_vrss_prpr_sign
    prdy_clpr_vrss_lwpr_rate ascn_issu_cnt uplm_issu_cnt stnr_issu_cnt down_issu_cnt lslm_issu_cnt
    dryy_bstp_nmix_hgpr dryy_hgpr_vrss_prpr_rate dryy_bstp_nmix_hgpr_date dryy_bstp_nmix_lwpr
    dryy_lwpr_vrss_prpr_rate dryy_bstp_nmix_lwpr_date total_askp_rsqn total_bidp_rsqn seln_rsqn_rate
    shnu_rsqn_rate ntby_rsqn
"""
VOLUME_RANK = """
    hts_kor_isnm mksc_shrn_iscd data_rank stck_prpr prdy_vrss_sign prdy_vrss prdy_ctrt acml_vol
    prdy_vol lstn_stcn avrg_vol n_befr_clpr_vrss_prpr_rate vol_inrt vol_tnrt nday_vol_tnrt
    avrg_tr_pbmn tr_pbmn_tnrt nday_tr_pbmn_tnrt acml_tr_pbmn
"""
HOLDING = """
    pdno prdt_name trad_dvsn_name bfdy_buy_qty bfdy_sll_qty thdt_buyqty thdt_sll_qty hldg_qty
    ord_psbl_qty pchs_avg_pric pchs_amt prpr evlu_amt evlu_pfls_amt evlu_pfls_rt evlu_erng_rt
    loan_dt loan_amt stln_slng_chgs expd_dt fltt_rt bfdy_cprs_icdc stck_loan_unpr
"""
MARGIN = "item_mgna_rt_name grta_rt_name sbst_pric"  # in inquire-balance only
BALANCE = """
    dnca_tot_amt nxdy_excc_amt prvs_rcdl_excc_amt cma_evlu_amt bfdy_buy_amt thdt_buy_amt
    nxdy_auto_rdpt_amt bfdy_sll_amt thdt_sll_amt d2_auto_rdpt_amt bfdy_tlex_amt thdt_tlex_amt
    tot_loan_amt scts_evlu_amt tot_evlu_amt nass_amt fncg_gld_auto_rdpt_yn pchs_amt_smtl_amt
    evlu_amt_smtl_amt evlu_pfls_smtl_amt tot_stln_slng_chgs bfdy_tot_asst_evlu_amt asst_icdc_amt
    asst_icdc_erng_rt
"""
REALISED = "rlzt_pfls rlzt_erng_rt real_evlu_pfls real_evlu_pfls_erng_rt"
POWER = """
    ord_psbl_cash ord_psbl_sbst ruse_psbl_amt fund_rpch_chgs psbl_qty_calc_unpr nrcvb_buy_amt
    nrcvb_buy_qty max_buy_amt max_buy_qty cma_evlu_amt ovrs_re_use_amt_wcrc ord_psbl_frcr_amt_wcrc
"""
SELLABLE = """
    pdno buy_qty sll_qty cblc_qty nsvg_qty ord_psbl_qty pchs_avg_pric pchs_amt now_pric evlu_amt
    evlu_pfls_amt evlu_pfls_rt
"""
OPEN = """
    ord_gno_brno odno orgn_odno ord_dvsn_name pdno prdt_name rvse_cncl_dvsn_name ord_qty ord_unpr
    ord_tmd tot_ccld_qty tot_ccld_amt psbl_qty sll_buy_dvsn_cd ord_dvsn_cd mgco_aptm_odno
    excg_dvsn_cd excg_id_dvsn_cd excg_id_dvsn_name stpm_cndt_pric stpm_efct_occr_yn
"""
ORDER = """
    ord_dt ord_gno_brno odno orgn_odno ord_dvsn_name sll_buy_dvsn_cd sll_buy_dvsn_cd_name pdno
    prdt_name ord_qty ord_unpr ord_tmd tot_ccld_qty avg_prvs cncl_yn ccld_yn tot_ccld_amt loan_dt
    ordr_empno ord_dvsn_cd cncl_cfrm_qty cnc_cfrm_qty rmn_qty rjct_qty ccld_cndt_name inqr_ip_addr
    cpbc_ordp_ord_rcit_dvsn_cd cpbc_ordp_infm_mthd_dvsn_cd infm_tmd ctac_tlno prdt_type_cd
    excg_dvsn_cd cpbc_ordp_mtrl_dvsn_cd ord_orgno rsvn_ord_end_dt excg_id_dvsn_Cd stpm_cndt_pric
    stpm_efct_occr_dtmd
"""
ORDER_TOTAL = "tot_ord_qty tot_ccld_qty tot_ccld_amt prsm_tlex_smtl pchs_avg_pric"
PROFIT_DAY = "trad_dt buy_amt sll_amt rlzt_pfls fee loan_int tl_tax pfls_rt sll_qty1 buy_qty1"
PROFIT_TRADE = """
    trad_dt pdno prdt_name trad_dvsn_name loan_dt hldg_qty pchs_unpr buy_qty buy_amt sll_pric
    sll_qty sll_amt rlzt_pfls pfls_rt fee tl_tax loan_int
"""
PROFIT_TOTAL = """
    sll_qty_smtl sll_tr_amt_smtl sll_fee_smtl sll_tltx_smtl sll_excc_amt_smtl buy_tr_amt_smtl
    buy_fee_smtl buy_tax_smtl buy_excc_amt_smtl tot_qty tot_tr_amt tot_fee tot_tltx tot_excc_amt
    tot_rlzt_pfls loan_int
"""


class Shape(NamedTuple):
    """One endpoint: its request, and the fields of each output; `*` marks a list of rows."""

    path: str
    tr_ids: str
    outputs: dict[str, str]
    query: dict[str, str]
    on_paper: bool = False
    account: bool = False


SHAPES = [
    Shape("quotations/inquire-price", "FHKST01010100", {"output": QUOTE}, SYMBOL, True),
    Shape("quotations/inquire-price-2", "FHPST01010000", {"output": QUOTE_2}, SYMBOL),
    Shape(
        "quotations/inquire-asking-price-exp-ccn",
        "FHKST01010200",
        {"output1": BOOK, "output2": EXPECTED},
        SYMBOL,
        True,
    ),
    Shape("quotations/inquire-ccnl", "FHKST01010300", {"output*": TRADE}, SYMBOL, True),
    Shape(
        "quotations/inquire-time-itemconclusion",
        "FHPST01060000",
        {"output1": TIMED_SUMMARY, "output2*": TIMED},
        HOUR,
        True,
    ),
    Shape("quotations/inquire-daily-price", "FHKST01010400", {"output*": RECENT}, DAYS, True),
    Shape(
        "quotations/inquire-daily-itemchartprice",
        "FHKST03010100",
        {"output1": DAY_SUMMARY, "output2*": DAY},
        DAYS,
        True,
    ),
    Shape("quotations/inquire-investor", "FHKST01010900", {"output*": INVESTORS}, SYMBOL, True),
    Shape(
        "quotations/inquire-time-itemchartprice",
        "FHKST03010200",
        {"output1": MINUTE_SUMMARY, "output2*": MINUTE},
        HOUR,
        True,
    ),
    Shape(
        "quotations/inquire-time-dailychartprice",
        "FHKST03010230",
        {"output1": MINUTE_SUMMARY, "output2*": MINUTE},
        HOUR | {"FID_INPUT_DATE_1": "20261113"},
    ),
    Shape("quotations/search-info", "CTPF1604R", {"output": INFO}, PRODUCT),
    Shape("quotations/search-stock-info", "CTPF1002R", {"output": STOCK_INFO}, PRODUCT),
    Shape(
        "quotations/inquire-index-price",
        "FHPUP02100000",
        {"output": INDEX},
        {"FID_COND_MRKT_DIV_CODE": "U", "FID_INPUT_ISCD": "0001"},
    ),
    Shape("quotations/volume-rank", "FHPST01710000", {"output*": VOLUME_RANK}, SYMBOL),
    Shape(
        "trading/inquire-daily-ccld",
        "TTTC0081R TTTC8001R CTSC9215R CTSC9115R",
        {"output1*": ORDER, "output2": ORDER_TOTAL},
        PERIOD,
        True,
        True,
    ),
    Shape(
        "trading/inquire-balance",
        "TTTC8434R",
        {"output1*": HOLDING + MARGIN, "output2*": BALANCE},
        {},
        True,
        True,
    ),
    Shape(
        "trading/inquire-balance-rlz-pl",
        "TTTC8494R",
        {"output1*": HOLDING, "output2*": BALANCE + REALISED},
        {},
        False,
        True,
    ),
    Shape(
        "trading/inquire-psbl-rvsecncl", "TTTC0084R TTTC8036R", {"output*": OPEN}, {}, False, True
    ),
    Shape(
        "trading/inquire-psbl-order",
        "TTTC8908R",
        {"output": POWER},
        {"PDNO": "005930", "ORD_UNPR": "70000", "ORD_DVSN": "00"},
        True,
        True,
    ),
    Shape(
        "trading/inquire-psbl-sell",
        "TTTC8408R",
        {"output": SELLABLE},
        {"PDNO": "005930"},
        False,
        True,
    ),
    Shape(
        "trading/inquire-period-profit",
        "TTTC8708R",
        {"output1*": PROFIT_DAY, "output2": PROFIT_TOTAL + "buy_qty_smtl"},
        PERIOD,
        False,
        True,
    ),
    Shape(
        "trading/inquire-period-trade-profit",
        "TTTC8715R",
        {"output1*": PROFIT_TRADE, "output2": PROFIT_TOTAL + "buyqty_smtl tot_pftrt"},
        PERIOD,
        False,
        True,
    ),
]
EACH_TR = [
    pytest.param(shape, tr_id, id=f"{shape.path.split('/')[1]}-{tr_id}")
    for shape in SHAPES
    for tr_id in shape.tr_ids.split()
]


@pytest.fixture
async def trader(kis: Kis, clock: ManualClock) -> Kis:
    """A customer with a holding, a sale of today and an open order, seconds after the opening."""
    await kis.order("buy", 10)
    await clock.advance(5)
    await kis.order("sell", 4)
    price = int((await kis.price()).body["output"]["stck_prpr"])
    await kis.order("buy", 1, price // 1000 * 900)
    return kis


@pytest.mark.parametrize(("shape", "tr_id"), EACH_TR)
async def test_an_answer_has_the_documented_fields(trader: Kis, shape: Shape, tr_id: str) -> None:
    account = trader.account if shape.account else {}
    reply = await trader.get(shape.path, tr_id, **shape.query, **account)
    assert (reply.status, reply.body["rt_cd"]) == (200, "0"), reply.body
    for name, fields in shape.outputs.items():
        value = reply.body[name.rstrip("*")]
        assert isinstance(value, list) is name.endswith("*")
        rows = value if isinstance(value, list) else [value]
        assert rows, f"{name} is empty"
        for row in rows:
            assert sorted(row) == sorted(fields.split())
            assert all(isinstance(each, str) for each in row.values())


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if not shape.on_paper])
async def test_a_paper_key_has_no_such_tr(start_kis: StartKis, shape: Shape) -> None:
    kis = await start_kis(paper=True)
    reply = await kis.get(shape.path, shape.tr_ids.split()[0], **shape.query, **kis.account)
    assert (reply.status, reply.code) == (500, "EGW02006")


UNKNOWN: dict[str, Any] = {
    "inquire-price": ("output", "stck_prpr", "0"),
    "inquire-price-2": ("output", "stck_prpr", "0"),
    "inquire-daily-itemchartprice": ("output1", "stck_prpr", "0"),
    "inquire-time-itemchartprice": ("output1", "stck_prpr", "0"),
    "inquire-psbl-order": ("output", "psbl_qty_calc_unpr", "0"),
    "inquire-time-itemconclusion": ("output1", "stck_prpr", "0"),
}


@pytest.mark.parametrize("name", UNKNOWN)
async def test_an_unknown_symbol_is_answered_with_zeros(trader: Kis, name: str) -> None:
    (shape,) = (each for each in SHAPES if each.path.split("/")[1] == name)
    query = {
        field: "999999" if field in ("FID_INPUT_ISCD", "PDNO") else value
        for field, value in shape.query.items()
    }
    account = trader.account if shape.account else {}
    reply = await trader.get(shape.path, shape.tr_ids.split()[0], **query, **account)
    output, field, zero = UNKNOWN[name]
    assert (reply.body["rt_cd"], reply.body[output][field]) == ("0", zero)


async def test_an_unknown_symbol_has_no_book_and_no_product(kis: Kis) -> None:
    query = SYMBOL | {"FID_INPUT_ISCD": "999999"}
    book = await kis.get("quotations/inquire-asking-price-exp-ccn", "FHKST01010200", **query)
    assert (book.body["rt_cd"], book.body["output1"]) == ("0", {})
    product = await kis.get(
        "quotations/search-info", "CTPF1604R", PDNO="999999", PRDT_TYPE_CD="300"
    )
    assert (product.status, product.body["rt_cd"]) == (200, "7")
